//! The pager engine (in the making).
#![no_std]

#[cfg(test)]
extern crate std;

mod bitmap;
pub mod codec;
pub mod config;
pub mod control;
mod entry;
mod lock;
mod pool;
mod store;
