//! Bugs planted on purpose, one at a time, to see that the tests catch them (`scripts/sabotage`).
//!
//! What it is not: in any build that people run. Without the cargo feature `sabotage`, [`planted`] is the constant `false`
//! and every bug is compiled away. With it, `PLANTED_BUG` names the bug of this process and its children; no name,
//! no bug. The variable is not called as memfold's own are, which `memfold run` and the tests take out of the environment.
//!
//! The code names the places: [`fault_point!`] stands where a bug can be planted, with what is right there and what the bug does instead. A bug
//! whose harm takes two threads in the same microsecond has that moment made longer, at a [`linger`], so that a test that looks at the right place
//! catches it every time.

/// Declares the bugs with the names by which the environment variable, and the script, call them.
macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        #[cfg(feature = "sabotage")]
        const NAMES: &[(&str, Bug)] = &[$(($name, Bug::$bug)),+];
    };
}

bugs! {
    /// A page that does not shrink is dropped from staging instead of going back.
    IncompressibleDropped = "incompressible-dropped",
    /// A page that does not shrink and goes back is taken for written, and tried again.
    ReturnTakenForWrite = "return-taken-for-write",
    /// What restores copied out of staging is not counted, so that it stays there as well.
    CopiesUncounted = "copies-uncounted",
    /// With what restores left behind in staging, what is still set aside is dropped.
    AsideDropped = "aside-dropped",
    /// What comes back all at once stays in the store until everything is back.
    StoreKept = "store-kept",
    /// What comes back because others around it are walked through counts as used.
    WalkTakenForUse = "walk-taken-for-use",
    /// What comes back unasked is moved without its entry being taken.
    RecallUntaken = "recall-untaken",
    /// A recall that was interrupted is not gone on with.
    RecallCutShort = "recall-cut-short",
    /// What was recalled is not marked, and has proved nothing.
    RecallUnmarked = "recall-unmarked",
    /// A page counts as one repeated word when its first words are the same.
    RepeatedTooSoon = "repeated-too-soon",
    /// After a page was compressed again, the slot of its new copy is freed instead of the old one's.
    WrongSlotFreed = "wrong-slot-freed",
    /// The store moves a page and does not tell the page's entry.
    RelocationUntold = "relocation-untold",
    /// A restored page gives its slot up twice.
    SlotFreedTwice = "slot-freed-twice",
    /// Pages leave first, and are registered for missing faults afterwards.
    ArmedTooLate = "armed-too-late",
    /// Pages that left, though the kernel says that they could not (Linux 6.18), count as pages that stayed.
    MovedUnseen = "moved-unseen",
    /// Of pages that came back, though the kernel says that they could not (Linux 6.18), only the first counts as there.
    BroughtUnseen = "brought-unseen",
    /// A thread that touched a page on its way out is not woken when the page has left.
    LeavingWakeLost = "leaving-wake-lost",
    /// A thread that touched a page while it was being brought back ahead of the touch is not woken.
    AheadWakeLost = "ahead-wake-lost",
    /// What came back together before is brought also where a limit leaves no room for a guess.
    GuessUnderLimit = "guess-under-limit",
    /// What came back together before, and is not away, is put there as zeros.
    GuessMade = "guess-made",
    /// An announced change that is over by the time that its report is looked at counts as made past libc.
    OverTakenForUnseen = "over-taken-for-unseen",
    /// A fork does not wait for what helpers have in hand.
    HelperNotAwaited = "helper-not-awaited",
    /// The fault thread waits for a message, and for nothing that is due meanwhile.
    DueNotAwaited = "due-not-awaited",
    /// Who touched a page that was about to be brought back ahead of the touch, but whose mapping is being changed, is not known to wait.
    AheadUnsaid = "ahead-unsaid",
    /// The same is known too late: the change is over.
    AheadOverUnwoken = "ahead-over-unwoken",
    /// Who faulted while a mapping was being changed is not woken afterwards.
    ChangeWakeLost = "change-wake-lost",
    /// Pages are moved out while the fault thread acts on the report of a change past libc.
    TurnNotTaken = "turn-not-taken",
    /// Pages are moved while a report is acted on that came in the middle of a touch.
    ServiceNotLeft = "service-not-left",
    /// A report that waits behind a touch that is over is read while pages are moved.
    ReportBehindTouch = "report-behind-touch",
    /// Pages are moved out while the report of a change past libc waits to be read.
    ReportNotAwaited = "report-not-awaited",
    /// A restore does not ask whether the mapping is being changed.
    AnnouncementIgnored = "announcement-ignored",
    /// A change does not wait for restores of its pages that have begun.
    BusyNotAwaited = "busy-not-awaited",
    /// A page that is there already counts as one whose mapping is gone.
    ExistingTakenForGone = "existing-taken-for-gone",
    /// What is let go of, or watched, may be what was moved there past libc in that moment, and its touches are reported no more.
    MovedUnregistered = "moved-unregistered",
    /// `MADV_DONTNEED` is not seen.
    DropNotSeen = "drop-not-seen",
    /// `munmap`, and mapping over, are not seen.
    UnmapNotSeen = "unmap-not-seen",
    /// `mremap` moves a range whose evicted pages were not brought back.
    MoveNotSeen = "move-not-seen",
    /// `mremap` to a lower address takes the locks by descending address.
    LockOrder = "lock-order",
    /// The report of a drop past libc is ignored.
    RemoveReportIgnored = "remove-report-ignored",
    /// The report of an unmapping past libc is ignored.
    UnmapReportIgnored = "unmap-report-ignored",
    /// The report of an `mremap` past libc is ignored.
    RemapReportIgnored = "remap-report-ignored",
    /// The background thread goes on working during a fork.
    BrakeNotHeld = "brake-not-held",
    /// Of two who wait until no program thread changes a mapping any more, one is not woken.
    CloserLeftAsleep = "closer-left-asleep",
    /// Program threads go on changing mappings during a fork.
    GateNotClosed = "gate-not-closed",
    /// Who forks waits for the pager to stop while it holds locks of the heap, for which the pager waits.
    HeapKeptFromStop = "heap-kept-from-stop",
    /// The handler that runs in a forked child does nothing.
    ChildNotTold = "child-not-told",
    /// A forked child does not register what is away.
    ChildNotRegistered = "child-not-registered",
    /// A forked child keeps entries busy that its parent's fault thread was restoring.
    ChildLeftBusy = "child-left-busy",
    /// A forked child keeps busy what stands for the entries that were never made.
    StandInLeftBusy = "stand-in-left-busy",
    /// Zeros are put where a page's entry was made meanwhile.
    StandInOutlived = "stand-in-outlived",
    /// Part of a huge page that came back for a touch counts as if the page that was touched had.
    HalfTakenForAll = "half-taken-for-all",
    /// The first helper looks at its bell after it has looked whether it is to end.
    BellReadLate = "bell-read-late",
    /// What lies below the stack of who forks may be away when its child begins to use it.
    StackNotBrought = "stack-not-brought",
    /// Slots of pages restored during a fork are used again at once.
    SlotsNotKept = "slots-not-kept",
    /// What was reported as gone while a child was forked counts there as away, if the child has its entry as it was before.
    ReportTorn = "report-torn",
    /// The pager ends without waiting until all is back.
    StoppedTooSoon = "stopped-too-soon",
    /// What becomes of moved memory while it is being followed is not followed.
    StepNotFollowed = "step-not-followed",
    /// What a slot of the store held stays there when it is freed.
    SlotNotWiped = "slot-not-wiped",
    /// What lies in staging and is of no use stays there.
    StagingNotWiped = "staging-not-wiped",
    /// What went through the working memory of an agent stays there.
    BufferNotWiped = "buffer-not-wiped",
    /// A note of a mapping that went past libc stays while the next mapping there is entered into the tables.
    NoteLeft = "note-left",
    /// A report that a range was unmapped is believed also of what was moved there since.
    LateReportBelieved = "late-report-believed",
    /// Where it is noted that pages are registered it is taken for true, though there may have been a hole.
    HoleTakenForArmed = "hole-taken-for-armed",
    /// What was shared with a child that has ended stays refused.
    SharingNotEnded = "sharing-not-ended",
    /// What the kernel refused to move is forgotten when the extent is let go.
    RefusalsForgotten = "refusals-forgotten",
    /// A dictionary is dropped when another one takes its place, though stored pages need it.
    DictionaryDropped = "dictionary-dropped",
    /// After a page that did not fit, the compressor keeps the dictionary that it had.
    DictionaryLeft = "dictionary-left",
    /// Pages that were compressed with a dictionary carry no checksum.
    DictionaryUnchecked = "dictionary-unchecked",
    /// What a child still shares is taken for the program's own.
    SharedTaken = "shared-taken",
    /// A page below memory that a thread waits for is not fetched.
    WantedForgotten = "wanted-forgotten",
    /// A thread that waits for a page from below memory is not woken when it is there.
    TierWakeLost = "tier-wake-lost",
    /// A page that was stored anew while an older state of it went to the tier, in the place that it had in the store, is taken for one that was not touched.
    StoredAnewUnseen = "stored-anew-unseen",
    /// Whoever looks for a cluster that has moved is sent to its old place.
    MoveUntold = "move-untold",
    /// A cluster that moves after it was found to have been fetched counts as lost.
    MovedTakenForLost = "moved-taken-for-lost",
    /// A cluster of which nothing is wanted any more is given back while it is on its way to another place.
    MovedGivenBack = "moved-given-back",
    /// A file of a tier is filled past what is mapped of it, which is where a forked child reads.
    FilledPastMap = "filled-past-map",
    /// A tier that is to become larger or smaller keeps the size that it had.
    SizeUnheard = "size-unheard",
    /// A tier that a running program is given has no thread that brings back what goes there.
    LateTierUnserved = "late-tier-unserved",
    /// A process takes more of a tier than was granted to it of what others have too.
    ShareUnheard = "share-unheard",
    /// A forked child takes as much of a tier that is shared as was granted to its parent.
    ShareInherited = "share-inherited",
    /// What was compressed last of what the program keeps from its children lies in working memory when it forks.
    UnforkedLeft = "unforked-left",
    /// All clusters are sealed under the same number, so that an older one opens in the place of a newer one.
    SealedAlike = "sealed-alike",
    /// A fork does not wait for what the tier's thread has in hand.
    TierNotAwaited = "tier-not-awaited",
    /// The tier's thread takes back what the fault thread is about to ask with.
    EarlyNotAwaited = "early-not-awaited",
    /// The tier's files are not known to be a child's too after a fork.
    FilesNotShared = "files-not-shared",
    /// A file that a child has is written over and given back like any other.
    SharedFileFilled = "shared-file-filled",
    /// On an engine in the network, a segment is filled again that it may yet be told to forget.
    SegmentFilledAgain = "segment-filled-again",
    /// After the process that knows the network has begun anew, it is not told what it is to keep.
    KeptUntold = "kept-untold",
    /// A connection that said something senseless is used on, and what comes late is taken for the answer to the next request.
    LateAnswerTaken = "late-answer-taken",
    /// What an engine does not take, or does not give, is not looked for on the disk beneath it.
    DiskNotBeneath = "disk-not-beneath",
    /// An engine that is away counts as one that has lost what it had.
    AwayTakenForLost = "away-taken-for-lost",
    /// What a change has unmapped before it failed counts as mapped still.
    HalfDoneNotSeen = "half-done-not-seen",
    /// The tables are told of a long mapping of which nothing is in memory.
    TablesOfNothing = "tables-of-nothing",

    // Of the preload library, and of processes as a whole, which the hard cases run with; what comes before is the pager's.

    /// What the program keeps from core dumps is stored where these have it.
    UndumpedDumped = "undumped-dumped",
    /// What is set aside of it lies where core dumps have it.
    UndumpedStaged = "undumped-staged",
    /// What libc or the kernel touched in a forked child before it was served stays zeros.
    ChildTouchUnmended = "child-touch-unmended",
    /// Mutexes that the kernel marks when their thread ends may be away then.
    LocksNotSpared = "locks-not-spared",
    /// A program that confines its system calls (seccomp) is folded on.
    SeccompNotSeen = "seccomp-not-seen",
    /// After a program has confined its system calls, one is made that it would not make without us.
    CallsAfterFilter = "calls-after-filter",
    /// A program that confines itself by landlock is folded on.
    LandlockNotSeen = "landlock-not-seen",
    /// A program that changes its root directory is folded on.
    ChrootNotSeen = "chroot-not-seen",
    /// A program that leaves or enters a namespace keeps the pager's threads.
    NamespaceNotSeen = "namespace-not-seen",
    /// A program that sends a signal to each of its threads, and waits for their answers, waits for the pager's.
    SignalsUnanswered = "signals-unanswered",
    /// A copy that the program makes on another stack, where it cannot be served, finds pages away.
    CopyUnserved = "copy-unserved",
    /// A program that becomes another user keeps the pager's threads, with its old credentials.
    UserNotSeen = "user-not-seen",
    /// A program that has become another user forks while pages are away, and its child may not open what it needs to reach them.
    PagemapTakenForGranted = "pagemap-taken-for-granted",
    /// A child of a program with one thread finds the list of streams locked.
    StreamsLeftLocked = "streams-left-locked",
    /// A program that locks all its memory is folded on.
    LockNotSeen = "lock-not-seen",
    /// The pager looks itself at the file in which others see its counters.
    FileTouched = "file-touched",
    /// A program gets `EBUSY` when it registers evicted memory with a userfaultfd of its own.
    UserfaultfdNotSeen = "userfaultfd-not-seen",
    /// What the program keeps from its children is stored where they have it.
    UnforkedInherited = "unforked-inherited",
    /// What was being unmapped past libc when a child was forked counts there as away.
    GoneTakenForAway = "gone-taken-for-away",
    /// What the program let its children have again, past libc, reads as zeros there.
    UnforkedUnseen = "unforked-unseen",
    /// The pager's descriptors are open in the table of the program.
    TableShared = "table-shared",
    /// Only the agents hold the userfaultfd, which is closed with them.
    NotPinned = "not-pinned",
    /// The pager's threads go on when the program has none left.
    EndNotSeen = "end-not-seen",
    /// A process that shares the memory and may outlive the pager's threads is not seen.
    SharingNotSeen = "sharing-not-seen",
    /// A process made by the system call's number, or by `_Fork`, is not seen.
    RawForkNotSeen = "raw-fork-not-seen",
    /// The streams that libc goes through in a child are not touched before the fork.
    StreamsNotTouched = "streams-not-touched",
    /// libc's list of fork handlers lies in memory that may be evicted.
    HandlersEvictable = "handlers-evictable",
    /// What a thread keeps of the later keys of thread-specific data lies in memory that may be evicted.
    ValuesEvictable = "values-evictable",
    /// The word that the kernel overwrites at the end of a thread may be away then.
    NumberEvictable = "number-evictable",
    /// A word that the kernel could not write to is not brought.
    WordNotBrought = "word-not-brought",
    /// Pages that the program moves by a userfaultfd of its own may be away.
    TakenAwayUnseen = "taken-away-unseen",
    /// A move to an address of choice goes to the kernel as one mapping, though registering has cut it.
    CutNotSeen = "cut-not-seen",
    /// A break that goes down is not seen.
    BreakNotSeen = "break-not-seen",
    /// Where libc says that the break was moved it is believed, and what was evicted there is forgotten.
    BreakBelieved = "break-believed",
    /// Who is refused a mapping for their number gets no other try.
    PiecesNotJoined = "pieces-not-joined",
    /// A range is let go of before a move though it could not be brought back.
    LetGoWhileAway = "let-go-while-away",

    // Of attaching to processes that run, which its own tests run with.

    /// A child that the kernel reports gets nothing of what was away in its parent.
    ChildNotFilled = "child-not-filled",
    /// A child does not get what comes back in its parent, or is dropped there, before it had it.
    ChildForgotten = "child-forgotten",
    /// What is away where memory came from that is being followed is forgotten when what lies there by then is dropped.
    FollowedForgotten = "followed-forgotten",
    /// The same of what a child is owed.
    OwedForgotten = "owed-forgotten",
    /// What a child is owed of what lies below memory is not fetched, and it reads zeros.
    OwedNotFetched = "owed-not-fetched",
    /// The tier's thread brings pages back while children are owed what was away.
    BroughtBesideChildren = "brought-beside-children",
    /// What the kernel is about to drop is managed on.
    DropNotAwaited = "drop-not-awaited",
    /// A mapping of which a part is folded is registered in parts, and cut in pieces.
    MappingCut = "mapping-cut",
    /// A thread that made system calls for who attaches goes on with a register of theirs.
    RegisterNotRestored = "register-not-restored",
    /// A thread that made system calls for who attaches goes on with its signals blocked.
    MaskNotRestored = "mask-not-restored",
    /// A system call that was ended by attaching, and that the kernel does not restart, is not made again.
    CallNotMadeAgain = "call-not-made-again",
    /// A system call for who attaches, and the agent's first thread, have the flags that the program has set for its own code.
    FlagsPassedOn = "flags-passed-on",
    /// A thread makes system calls for who attaches while it executes code of 32 bits.
    CodeNotLooked = "code-not-looked",
    /// What is open for an attached agent is open in the program's descriptor table, and stays open.
    DescriptorLeaked = "descriptor-leaked",
    /// What was mapped for the agent from outside stays mapped.
    MappingLeaked = "mapping-leaked",
    /// The plan can be joined with a mapping of the program's, and is not found in it.
    RegionJoined = "region-joined",
    /// The kernel is not asked for reports of forks.
    ForksNotAskedFor = "forks-not-asked-for",
    /// Several attach to a process at once.
    LockNotHeld = "lock-not-held",
    /// A thread that was in a restartable sequence goes on in it.
    SequenceNotLeft = "sequence-not-left",
}

#[cfg(not(feature = "sabotage"))]
mod choice {
    use super::Bug;

    /// Whether this bug is planted: never, in this build.
    pub const fn planted(_: Bug) -> bool {
        false
    }

    /// Makes the moment of a planted bug longer: nothing, in this build.
    pub const fn linger(_: Bug) {}

    /// Plants the bug that is wanted: nothing, in this build.
    pub const fn choose(_: Option<&[u8]>) {}
}

#[cfg(feature = "sabotage")]
mod choice {
    use super::{Bug, NAMES};
    use core::ffi::CStr;
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use memfold_sys::time::{sleep, Nanos};

    /// The number of the bug, plus one; 0 for none.
    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    /// Whether this bug is planted.
    pub fn planted(bug: Bug) -> bool {
        CHOSEN.load(Relaxed) == bug as u32 + 1
    }

    /// How long the moment of a bug is made, in milliseconds, for those that take one.
    const MOMENTS: [(Bug, u64); 10] = [
        // Between the looks of a helper that has just begun.
        (Bug::BellReadLate, 200),
        // Between the locks of two extents.
        (Bug::LockOrder, 1),
        // Between the reading of a report and the acting on it.
        (Bug::TurnNotTaken, 20),
        // Between the look whether a mapping is being changed and the unregistering.
        (Bug::MovedUnregistered, 20),
        // Before a message is read.
        (Bug::ReportNotAwaited, 20),
        // While entries are taken for a restore, of any kind and ahead of a touch.
        (Bug::BusyNotAwaited, 2),
        (Bug::AheadWakeLost, 1),
        // Between the leaving of pages and their being registered.
        (Bug::ArmedTooLate, 5),
        // Between the move of pages and the end of `Leaving`.
        (Bug::LeavingWakeLost, 2),
        // While a cluster is on its way to another place.
        (Bug::MovedGivenBack, 20),
    ];

    /// Makes the moment of a planted bug longer.
    pub fn linger(bug: Bug) {
        if planted(bug) {
            for (_, millis) in MOMENTS.iter().filter(|(of, _)| *of == bug) {
                sleep(Nanos::from_millis(*millis));
            }
        }
    }

    /// Plants the bug of this name, without one that of the environment, which libc does not have yet when a preloaded library
    /// starts. A name that no bug has ends the process: a script with a typing error must not find that nothing was caught.
    pub fn choose(name: Option<&[u8]>) {
        // SAFETY: the engine is prepared before the program runs, and tests do not change their environment.
        let of_libc = || unsafe { libc::getenv(c"PLANTED_BUG".as_ptr()).as_ref() };
        // SAFETY: a string of the environment.
        let Some(wanted) = name.or_else(|| of_libc().map(|text| unsafe { CStr::from_ptr(text) }.to_bytes()))
        else {
            return;
        };
        match NAMES.iter().find(|(name, _)| name.as_bytes() == wanted) {
            Some((_, bug)) => CHOSEN.store(*bug as u32 + 1, Relaxed),
            None => {
                let _ = memfold_sys::file::write_all(2, b"memfold: PLANTED_BUG names no bug\n");
                memfold_sys::thread::abort_process()
            }
        }
    }
}

pub use choice::{choose, linger, planted};

/// A place where the bug of that name can be planted: what is right there, and behind `else` what the bug does instead; nothing, where nothing
/// stands there. Without the feature it is what is right.
macro_rules! fault_point {
    ($bug:ident: $right:expr, else $wrong:expr) => {
        if $crate::sabotage::planted($crate::sabotage::Bug::$bug) {
            $wrong
        } else {
            $right
        }
    };
    ($bug:ident: $right:expr) => {
        if !$crate::sabotage::planted($crate::sabotage::Bug::$bug) {
            $right;
        }
    };
}

pub(crate) use fault_point;
