"""Operations of one C call without a choice of algorithms."""
