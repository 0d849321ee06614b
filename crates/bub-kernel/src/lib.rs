//! bub-kernel
