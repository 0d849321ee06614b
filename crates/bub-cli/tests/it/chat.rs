//! `bub chat` as people meet it: in a terminal, with an emulator as the judge, and through a pipe.

mod input;
mod pipe;
mod screen;
mod sessions;
mod terminal;
