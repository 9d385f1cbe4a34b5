//! Packages.
