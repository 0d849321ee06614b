//! Models: every provider people use, streamed faithfully, failing well.
