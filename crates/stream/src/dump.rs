//! Records as text, in the form of `zstream dump -v`.
