"""`cudnnlite doctor`: what is installed here, what is wrong with it, and what to do about it.

Facts are gathered first and judged then, by functions that look at nothing else; `examination.py` puts them together.
"""

from cudnnlite.doctor.examination import Examination, examine
from cudnnlite.doctor.finding import Finding, Verdict

__all__ = ["Examination", "Finding", "Verdict", "examine"]
