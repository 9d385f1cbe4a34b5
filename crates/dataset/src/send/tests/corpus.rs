//! Streams of real OpenZFS, received and sent again.
