"""Problems as data: declarations of operations, problems, results of searches."""
