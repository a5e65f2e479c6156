"""A thin skin: decode, call, encode. One file per resource; limits, errors and documentation around them."""
