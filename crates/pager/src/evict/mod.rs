//! The background thread: what it works with, the loop by which it evicts, the policies that the loop asks, and the steps of an eviction.
//!
//! What it is not: what a page needs to come back, which is [`crate::fault`].

pub(crate) mod background;
pub(crate) mod budgets;
pub(crate) mod by_age;
pub(crate) mod care;
pub(crate) mod compact;
pub(crate) mod demote;
pub(crate) mod discover;
pub(crate) mod group;
pub(crate) mod laundry;
pub(crate) mod learning;
pub(crate) mod limit;
pub(crate) mod locks;
pub(crate) mod maintenance;
pub(crate) mod opening;
pub(crate) mod own;
pub(crate) mod page_daemon;
pub(crate) mod passlog;
pub(crate) mod round;
pub(crate) mod scan;
pub(crate) mod set_aside;
pub(crate) mod stamping;
pub(crate) mod uncut;
pub(crate) mod wakecost;
pub(crate) mod worker;
