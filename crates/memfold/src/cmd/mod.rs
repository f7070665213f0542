//! One file a command: its arguments and what it prints.

pub mod attach;
pub mod bench;
pub mod completions;
pub mod config;
pub mod core_dump;
pub mod ctl;
pub mod daemon;
pub mod demo;
pub mod depot;
pub mod detach;
pub mod doctor;
pub mod heap;
pub mod man;
pub mod metrics;
pub mod pagecache;
pub mod record;
pub mod report;
pub mod run;
pub mod service;
pub mod setup;
pub mod sim;
pub mod stat;
mod stat_alloc;
pub mod survey;
pub mod top;
pub mod trace;
pub mod web;
