//! Single cases whose records are known.
