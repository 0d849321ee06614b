//! Tests `bub chat` in a terminal, checked by an emulator, and through a pipe.

mod commands;
mod input;
mod pipe;
mod screen;
mod sessions;
pub(crate) mod terminal;
mod visibility;
