//! The pager engine (in the making).
#![no_std]

#[cfg(test)]
extern crate std;

pub mod config;
pub mod control;
