"""Problems as data: declarations of operations, problems, problem lists, results of searches."""
