//! The parsers of foreign bytes, each as a function that must survive any input.
//!
//! What it is: one [`Target`] a parser, with seeds made of real inputs. `scripts/fuzz` searches with libFuzzer, and the test
//! `replay` runs every target over its seeds and damaged copies of them, so that none rots.
//!
//! What it is not: a test of what the parsers make of good input; that stands beside them.
//!
//! Invariants: a target keeps nothing from one input to the next, touches no file and no network, and panics only where the
//! parser or its promise is broken.

mod codec;
mod pages;
mod text;
mod tier;
mod traces;

/// A parser under test.
pub struct Target {
    /// Its name, as `scripts/fuzz` takes it.
    pub name: &'static str,
    /// Parses any bytes; panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Small inputs that are in order, to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub static TARGETS: &[Target] = &[
    Target { name: "control_page", run: pages::page, seeds: pages::pages },
    Target { name: "control_page_changing", run: pages::changing_page, seeds: pages::pages },
    Target { name: "codec", run: codec::unpack, seeds: codec::packed_pages },
    Target { name: "tier_message", run: tier::message, seeds: tier::messages },
    Target { name: "tier_cluster", run: tier::cluster, seeds: tier::clusters },
    Target { name: "tier_unsealed", run: tier::unsealed, seeds: tier::unsealed_ones },
    Target { name: "tier_choice", run: tier::choice, seeds: tier::choices },
    Target { name: "trace_native", run: traces::native, seeds: traces::native_seeds },
    Target { name: "trace_native_block", run: traces::native_block, seeds: traces::native_block_seeds },
    Target { name: "trace_oracle_general", run: traces::oracle_general, seeds: traces::oracle_general_seeds },
    Target { name: "trace_csv", run: traces::csv, seeds: traces::csv_seeds },
    Target { name: "trace_zstd", run: traces::zstd, seeds: traces::zstd_seeds },
    Target { name: "fio_json", run: text::fio_json, seeds: text::fio_json_seeds },
    Target { name: "pagecache_config", run: text::pagecache_config, seeds: text::pagecache_config_seeds },
    Target { name: "kernel_text", run: text::kernel_text, seeds: text::kernel_text_seeds },
    Target { name: "options", run: text::options, seeds: text::option_seeds },
];

/// The target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
