//! The control page: what a folded process tells the world, and what the world may ask of it.
//!
//! One file a process, named by its process id, in the directory `MEMFOLD_CONTROL_DIR`; the process has its counters
//! copied to it ([`crate::mirror`]), so they can be read while it runs and after it died, however it
//! died. `memfold stat`, `memfold ctl` and the summary of `memfold run` read and write this page and
//! nothing else. Commands go the other way through a mailbox with a ticket number.
//!
//! What it is not: a protocol between users. The file is 0600, in a directory that is 0700.
//!
//! Invariants: the layout is `repr(C)`, fixed by [`VERSION`]; every field is an atomic; of the file the process
//! takes the mailbox, the request's text and the share, and nothing else; a command is validated like any other input.

use crate::activity::Activity;
use crate::codec::CODEC_NUMBERS;
use crate::config::Setting;
pub use crate::inventory::Inventory;
use crate::share::Share;
use crate::shared_text::SharedText;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// First word of the page: the bytes `memfold\0`, little end first.
pub const MAGIC: u64 = u64::from_le_bytes(*b"memfold\0");

/// Layout version. A reader refuses another one.
pub const VERSION: u32 = 15;

/// Length of the file in bytes.
pub const CONTROL_LEN: usize = 4 * memfold_sys::PAGE_SIZE;

/// Sub-buckets per power of two in a [`Histogram`]: a value is known within 1/16, about 6 %.
const SUB: usize = 16;
/// Powers of two covered: 1 ns up to 2^36 ns (69 s); longer values count in the last bucket.
const POWERS: usize = 36;
/// Buckets in a histogram.
pub const BUCKETS: usize = SUB * (POWERS - 3);

/// A histogram of nanoseconds with relative error below 1/16.
#[repr(C)]
pub struct Histogram {
    /// How many values were recorded.
    pub count: AtomicU64,
    /// Their sum, ns.
    pub sum: AtomicU64,
    /// The largest, ns.
    pub max: AtomicU64,
    /// Counts by bucket; see [`Histogram::bucket_of`].
    pub buckets: [AtomicU32; BUCKETS],
}

impl Histogram {
    /// The bucket that a value falls into: values below 16 one each, then 16 to every power of two.
    pub fn bucket_of(ns: u64) -> usize {
        if ns < SUB as u64 {
            return ns as usize;
        }
        let power = 63 - ns.leading_zeros() as usize;
        let sub = (ns >> (power - 4)) as usize & (SUB - 1);
        ((power - 3) * SUB + sub).min(BUCKETS - 1)
    }

    /// The middle of a bucket, ns.
    pub fn value_of(bucket: usize) -> u64 {
        if bucket < SUB {
            return bucket as u64;
        }
        let power = bucket / SUB + 3;
        let width = 1u64 << (power - 4);
        (1u64 << power) + (bucket % SUB) as u64 * width + width / 2
    }

    /// Records one value. One writer at a time: the counts are then exact.
    pub fn record(&self, ns: u64) {
        // Relaxed: a statistic that orders nothing.
        bump(&self.count, 1);
        bump(&self.sum, ns);
        if ns > self.max.load(Relaxed) {
            self.max.store(ns, Relaxed);
        }
        let bucket = &self.buckets[Histogram::bucket_of(ns)];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The smallest recorded value that at least the fraction `q` of values does not exceed, ns; 0 if
    /// nothing was recorded. Never above [`Histogram::max`].
    pub fn quantile(&self, q: f64) -> u64 {
        let total: u64 = self.buckets.iter().map(|b| u64::from(b.load(Relaxed))).sum();
        let rank = ((total as f64 * q) as u64).min(total.saturating_sub(1));
        let mut seen = 0;
        for (i, bucket) in self.buckets.iter().enumerate() {
            seen += u64::from(bucket.load(Relaxed));
            if seen > rank {
                return Histogram::value_of(i).min(self.max.load(Relaxed));
            }
        }
        0
    }
}

/// Adds to a counter that has one writer at a time; cheaper than an atomic read-modify-write.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Whether the process is being folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// Not yet decided: too little memory to manage so far.
    Idle = 0,
    /// By agent threads in the process, which is the only way there is.
    Embedded = 1,
    /// Runs plainly; the reason is in [`ControlPage::reason`].
    Off = 3,
}

impl Mode {
    /// From the number on the page; unknown numbers read as `Off`.
    pub fn from_u32(raw: u32) -> Mode {
        match raw {
            0 => Mode::Idle,
            1 => Mode::Embedded,
            _ => Mode::Off,
        }
    }

    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Idle => "idle",
            Mode::Embedded => "embedded",
            Mode::Off => "off",
        }
    }
}

/// What a peer can ask for; the number stands in [`Mailbox::command`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Command {
    /// Change a setting: `argument` holds the [`Setting`], `value` its new value.
    Set = 1,
    /// Stop evicting; what is folded stays so and is restored on touch.
    Pause = 2,
    /// Evict again.
    Resume = 3,
    /// Bring everything back and go on without pager.
    Stop = 4,
    /// Bring everything back, then go on as before.
    Restore = 5,
    /// Evict everything that can be evicted now, whatever its age.
    Evict = 6,
    /// Evict by the policy that [`ControlPage::request`] names.
    Policy = 7,
    /// Log every pass of the page daemon to the file that [`ControlPage::request`] names; no longer where it is empty.
    Log = 8,
    /// Make one pass of the page daemon now, as if `value` ns had gone by since the last one.
    Pass = 9,
    /// Bring [`ControlPage::inventory`] up to date.
    Inventory = 10,
    /// Evict everything, to the lowest tier that there is, and leave it there until the program wants much of it.
    Sleep = 11,
    /// Bring back what the program wanted when it last woke.
    Wake = 12,
    /// Write what is where to the file of number `value` beside the page ([`crate::heat`]).
    Heat = 13,
    /// Write the sampled blocks of the host's allocator to the file of number `value` beside the page ([`crate::samples`]).
    Samples = 14,
    /// Stamp the steps of `argument` touches from now on; with 0, write those stamped to the file of number `value` beside the page, and stamp no
    /// more ([`crate::fault::stamps`]).
    Steps = 15,
    /// Use the tier that [`ControlPage::request`] names, or change the size and the age of the one that there is.
    Tier = 16,
}

/// A request to the process and its answer. Who asks has these bytes of the file locked meanwhile (`F_OFD_SETLK`, fcntl(2)).
#[repr(C)]
pub struct Mailbox {
    reserved: AtomicU32,
    /// The [`Command`].
    pub command: AtomicU32,
    /// First argument of the command.
    pub argument: AtomicU64,
    /// Second argument of the command.
    pub value: AtomicU64,
    /// Incremented by the writer after it filled in the rest: a new request.
    pub asked: AtomicU32,
    /// Set to `asked` by the process when it has carried the request out.
    pub answered: AtomicU32,
    /// The answer: 0, or an error number of the kernel.
    pub error: AtomicU32,
    reserved_too: AtomicU32,
}

/// Where the mailbox is in the file: its first byte, and how many it has.
pub const MAILBOX: (u64, u64) =
    (core::mem::offset_of!(ControlPage, mailbox) as u64, core::mem::size_of::<Mailbox>() as u64);

/// Size classes that [`AllocCounters`] has room for.
pub const ALLOC_CLASSES: usize = 112;

/// What the allocator in the process holds and did. The pager only keeps the place; whoever joins both writes it, now and
/// then.
#[repr(C)]
pub struct AllocCounters {
    /// `CLOCK_MONOTONIC` when these counters were last written, ns; 0 for never.
    pub updated_ns: AtomicU64,
    /// Bytes of address space mapped for blocks.
    pub mapped_bytes: AtomicU64,
    /// Bytes of blocks that the program has or its threads keep at hand, blocks of whole pages included.
    pub live_bytes: AtomicU64,
    /// Bytes in free runs of pages that may be resident.
    pub cached_bytes: AtomicU64,
    /// Bytes of the allocator's own records.
    pub record_bytes: AtomicU64,
    /// Blocks of whole pages.
    pub large_blocks: AtomicU64,
    /// Bytes of those.
    pub large_bytes: AtomicU64,
    /// Calls of `mmap` by the allocator.
    pub mmap_calls: AtomicU64,
    /// Calls of `munmap`.
    pub munmap_calls: AtomicU64,
    /// Calls of `madvise`.
    pub madvise_calls: AtomicU64,
    /// Calls of `mprotect`.
    pub mprotect_calls: AtomicU64,
    /// Calls of `mremap`.
    pub mremap_calls: AtomicU64,
    /// By size class: bytes of a block, bytes in spans, used blocks.
    pub classes: [[AtomicU64; 3]; ALLOC_CLASSES],
}

/// Declares the page, and for each group of its counters a copy as plain numbers.
macro_rules! control_page {
    (
        $(#[$page_doc:meta])*
        $Page:ident {
            $( $(#[$head_doc:meta])* $head:ident: $Head:ty, )*
        }
        counters {
            $(
                $(#[$group_doc:meta])*
                $Group:ident {
                    $( $(#[$doc:meta])* $name:ident = $counter:ident, )*
                }
            )*
        }
        rest {
            $( $(#[$tail_doc:meta])* $tail:ident: $Tail:ty, )*
        }
    ) => {
        $(#[$page_doc])*
        #[repr(C)]
        pub struct $Page {
            $( $(#[$head_doc])* pub $head: $Head, )*
            $( $( $(#[$doc])* pub $counter: AtomicU64, )* )*
            $( $(#[$tail_doc])* pub $tail: $Tail, )*
        }

        $(
            $(#[$group_doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $Group {
                $( $(#[$doc])* pub $name: u64, )*
            }

            impl Counters for $Group {
                fn of(page: &$Page) -> $Group {
                    $Group { $( $name: page.$counter.load(Relaxed), )* }
                }

                fn each(&self, mut seen: impl FnMut(&'static str, &'static str, u64)) {
                    $( seen(stringify!($name), stringify!($counter), self.$name); )*
                }

                fn combine(&mut self, other: &$Group, with: impl Fn(&'static str, u64, u64) -> u64) {
                    $( self.$name = with(stringify!($name), self.$name, other.$name); )*
                }
            }
        )*
    };
}

/// A group of the page's counters as plain numbers.
pub trait Counters: Sized {
    /// What the page says now.
    fn of(page: &ControlPage) -> Self;

    /// Shows each to `seen`: its name in the group, its name on the page, and the number.
    fn each(&self, seen: impl FnMut(&'static str, &'static str, u64));

    /// Puts in place of each number what `with` makes of its name, itself and the other's.
    fn combine(&mut self, other: &Self, with: impl Fn(&'static str, u64, u64) -> u64);
}

control_page! {
    /// The page itself. Bytes and times are totals unless the name says otherwise; times are in nanoseconds.
    ControlPage {
        /// [`MAGIC`], written last when the page is made.
        magic: AtomicU64,
        /// [`VERSION`].
        version: AtomicU32,
        /// The process.
        pid: AtomicU32,
        /// The process that forked or started it.
        parent_pid: AtomicU32,
        /// A [`Mode`].
        mode: AtomicU32,
        /// 1 while paused.
        paused: AtomicU32,
        /// 1 while the program sleeps.
        asleep: AtomicU32,
        /// 1 once the process left through `exit`.
        exited: AtomicU32,
        /// `CLOCK_MONOTONIC` when the page was made.
        started_ns: AtomicU64,
        /// `CLOCK_MONOTONIC` when the counters were last brought up to date.
        updated_ns: AtomicU64,
    }
    counters {
        /// Bytes by what became of them.
        Sizes {
            /// Bytes that the pager may evict (address space that is managed).
            managed_bytes = managed_bytes,
            /// Highest value of `managed_bytes`.
            managed_bytes_peak = managed_bytes_peak,
            /// Of the managed bytes those in the program's view, as last scanned.
            resident_bytes = resident_bytes,
            /// Anonymous memory of the process that is resident, as the kernel counts it, while a limit is kept; bytes.
            anonymous_bytes = anonymous_bytes,
            /// Bytes of the program's that are compressed and given back to the kernel now.
            evicted_bytes = evicted_bytes,
            /// Highest value.
            evicted_bytes_peak = evicted_bytes_peak,
            /// Bytes set aside, still whole, not yet compressed.
            aside_bytes = aside_bytes,
            /// The lengths of compressed pages.
            stored_bytes = stored_bytes,
            /// Highest value.
            stored_bytes_peak = stored_bytes_peak,
            /// What evicting costs: the store's memory, tables and buffers.
            overhead_bytes = overhead_bytes,
            /// Of that the store's memory: compressed bytes, what stands in front of them, gaps, and what describes blocks.
            store_bytes = store_bytes,
            /// Of that tables of what became of each page.
            table_bytes = table_bytes,
            /// Of that dictionaries, which pages are compressed with.
            dictionary_bytes = dictionary_bytes,
            /// Of the evicted bytes those that lie in the tier below memory.
            tier_bytes = tier_bytes,
            /// Highest value.
            tier_bytes_peak = tier_bytes_peak,
            /// Bytes of files that they take there.
            tier_file_bytes = tier_file_bytes,
            /// `evicted_bytes` minus `overhead_bytes`, zero where that is negative.
            saved_bytes = saved_bytes,
            /// Highest value.
            saved_bytes_peak = saved_bytes_peak,
        }

        /// Pages by what happened to them.
        Pages {
            /// Pages evicted to the store.
            evicted = pages_evicted,
            /// Pages brought back from the store, on touch or ahead of it.
            restored = pages_restored,
            /// Pages touched while set aside: moved back without codec.
            second_chance = pages_second_chance,
            /// Evicted pages that were one word repeated.
            same_value = pages_same_value,
            /// Pages that did not shrink by 5 %, and went back; not restored, since they were never stored.
            incompressible = pages_incompressible,
            /// Pages whose bytes could not be brought back. Anything but 0 is a defect.
            lost = pages_lost,
            /// Of those the ones brought back ahead of a touch.
            prefetched = pages_prefetched,
            /// Pages set aside.
            set_aside = pages_set_aside,
            /// Pages re-compressed with the stronger codec.
            recompressed = pages_recompressed,
            /// Pages discarded while evicted (freed, unmapped, `MADV_DONTNEED`).
            discarded = pages_discarded,
            /// Pages asked for ahead of their touch because they came back together with others before.
            predicted = pages_predicted,
            /// Of those the ones that were touched, as samples tell.
            predicted_hit = predicted_hit,
            /// Of those the ones that were not.
            predicted_wasted = predicted_wasted,
            /// Pages asked for because the time had come at which they recur.
            periods_predicted = periods_predicted,
            /// Of those the ones that were touched, as samples tell.
            periods_hit = periods_hit,
            /// Of those the ones that were not.
            periods_wasted = periods_wasted,
        }

        /// What folding costs, in nanoseconds and events.
        Costs {
            /// Time that the program's threads waited for the pager, ns.
            stall_ns = stall_ns,
            /// The highest share of a sliding window spent waiting, in millionths.
            stall_ppm_peak = stall_ppm_peak,
            /// Times that a thread had to wait for room below the limit.
            limit_waits = limit_waits,
            /// For how long they waited, ns. Not a part of `stall_ns`.
            limit_wait_ns = limit_wait_ns,
            /// Times that threads were let through above the limit, because nothing more could be evicted.
            limit_misses = limit_misses,
            /// CPU time of the background thread, ns.
            cpu_background_ns = cpu_background_ns,
            /// CPU time of the fault thread and its helpers, ns.
            cpu_fault_ns = cpu_fault_ns,
            /// CPU time of the thread of the tier below memory, ns.
            cpu_tier_ns = cpu_tier_ns,
            /// Clusters written to the tier.
            tier_writes = tier_writes,
            /// Clusters that moved within the tier, so that segments of which little was wanted could go.
            tier_moves = tier_moves,
            /// Bytes that were read from the tier.
            tier_read_bytes = tier_read_bytes,
            /// Bytes of pages for which something waited that lay in the tier.
            tier_asked_bytes = tier_asked_bytes,
            /// Clusters that could not be written, or not be read at the first try.
            tier_errors = tier_errors,
            /// Times that somebody waited for an engine on the network that was away, and for how long, ns.
            tier_waits = tier_waits,
            /// See there.
            tier_wait_ns = tier_wait_ns,
            /// Times that the stall budget held eviction back.
            budget_holds = budget_holds,
            /// Extents registered with userfaultfd.
            extents_registered = extents_registered,
            /// First touches of untouched pages in extents that were registered.
            faults_zero = faults_zero,
            /// Faults that found the page already there.
            faults_spurious = faults_spurious,
            /// Of the waits in `fault_ns` those that the fault thread ended as a real-time thread.
            faults_real_time = faults_real_time,
            /// Mappings that came under management, those of the allocator among them.
            ranges_added = ranges_added,
            /// Unmappings in which something was managed.
            ranges_removed = ranges_removed,
        }
    }
    rest {
        /// Integral of `saved_bytes` over time, in byte-milliseconds; divided by the run time it is the mean.
        saved_byte_millis: AtomicU64,
        /// Of those evicted the ones that each codec compressed, by the number in front of a stored page.
        pages_by_codec: [AtomicU64; CODEC_NUMBERS],
        /// Dictionaries that pages are or were compressed with.
        dictionaries_made: AtomicU64,
        /// What the background thread's time went to, by [`Activity`]; ns by the clock.
        activity_ns: [AtomicU64; Activity::COUNT],
        /// Why what is resident is not folded.
        inventory: Inventory,
        /// Value of each [`Setting`] now, indexed by it.
        settings: [AtomicU64; Setting::COUNT],
        /// Requests.
        mailbox: Mailbox,
        /// The allocator's.
        alloc: AllocCounters,
        /// Why the mode is `Off`.
        reason: SharedText<32>,
        /// The policy that evicts now, with its parameters.
        policy: SharedText<16>,
        /// The file that passes are logged to; empty for none.
        log: SharedText<64>,
        /// The text of a request.
        request: SharedText<64>,
        /// The socket of the daemon under whose budget the process wants to be; empty for none.
        daemon: SharedText<16>,
        /// What that daemon grants.
        share: Share,
        /// The share that is in force, bytes; 0 for none.
        share_in_force: AtomicU64,
        /// The tier below memory, once it was opened; empty for none.
        tier: SharedText<64>,
        /// Bytes that the process may take of it by a daemon's word; 0 where it has it for itself.
        tier_share: AtomicU64,
        /// The access source that is asked, a [`crate::source::Kind`].
        source: AtomicU64,
        /// Why it is not the one that was chosen; empty where it is.
        source_why: SharedText<32>,
        /// Passes of the page daemon.
        passes: AtomicU64,
        /// Wait of a program thread on a fault, from the touch to the wake-up, ns.
        fault_ns: Histogram,
        /// Reading of a cluster from the tier below memory, opening its seal included, ns.
        tier_read_ns: Histogram,
        /// Work on a restore: look-up, decompression and mapping of the page, ns.
        restore_ns: Histogram,
    }
}

const _: () = assert!(core::mem::size_of::<ControlPage>() <= CONTROL_LEN);

impl Costs {
    /// CPU time of all the pager's threads, ns. A page may say anything: it does not overflow.
    pub fn cpu_ns(&self) -> u64 {
        [self.cpu_background_ns, self.cpu_fault_ns, self.cpu_tier_ns].into_iter().fold(0, u64::saturating_add)
    }
}

impl ControlPage {
    /// Makes a page of zeros one of the calling process, which any reader takes for whole.
    pub fn begin(&self) {
        self.version.store(VERSION, Relaxed);
        self.pid.store(memfold_sys::thread::current_pid(), Relaxed);
        self.parent_pid.store(memfold_sys::thread::parent_pid(), Relaxed);
        self.mode.store(Mode::Idle as u32, Relaxed);
        self.started_ns.store(memfold_sys::time::now().0, Relaxed);
        // Release: a reader that sees the magic sees the rest.
        self.magic.store(MAGIC, Release);
    }
}
