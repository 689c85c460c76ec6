"""What an operation is asked to do, as data: declarations, problems, lists, search results."""
