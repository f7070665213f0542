//! What the daemon and its clients read of each other: the greeting, the channel and compressed pages.

use memfold_daemon::channel::{job, len_for, Channel, Entry, State, JOBS, REGIONS};
use memfold_daemon::serve::Server;
use memfold_daemon::wire::{Hello, Reply, VERSION};
use memfold_pager::codec::{Codec, CodecId, Codecs, Dictionaries, MAX_STORED};
use memfold_pager::store::{GRAIN, HEADER};
use memfold_sys::{mem, PAGE_SIZE};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Pages of the channel under test.
const PAGES: usize = 16;
/// Where the ranges of the seeds lie.
const BASE: u64 = 0x10_0000;

/// The greeting of either side, and that what is read is sent the same.
pub(crate) fn greeting(bytes: &[u8]) {
    if let Some(hello) = Hello::parse(bytes) {
        assert_eq!(Hello::parse(&hello.bytes()), Some(hello));
    }
    if let Some(reply) = Reply::parse(bytes) {
        assert_eq!(reply.bytes()[..], *bytes);
    }
}

pub(crate) fn greetings() -> Vec<Vec<u8>> {
    vec![
        Hello { version: VERSION, pages: 512 }.bytes().to_vec(),
        Reply { version: VERSION, error: 0 }.bytes().to_vec(),
        Reply { version: VERSION, error: 71 }.bytes().to_vec(),
    ]
}

thread_local! {
    static CODECS: RefCell<Option<Codecs>> = const { RefCell::new(None) };
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Decompresses; the buffers are as the daemon has them.
fn decompress(codec: CodecId, data: &[u8]) -> bool {
    CODECS.with_borrow_mut(|codecs| {
        let codecs = codecs.get_or_insert_with(|| Codecs::new().expect("there is memory for the codecs"));
        codecs.decompress(codec, &Dictionaries::new(), data, &mut [0; PAGE_SIZE])
    })
}

/// Compressed pages out of a store that somebody else wrote. The first byte picks the codec.
pub(crate) fn codec(bytes: &[u8]) {
    let Some((&first, data)) = bytes.split_first() else { return };
    if let Some(codec) = CodecId::from_bits(u64::from(first % 3)) {
        decompress(codec, &data[..data.len().min(MAX_STORED)]);
    }
}

pub(crate) fn packed_pages() -> Vec<Vec<u8>> {
    let mut codecs = Codecs::new().expect("there is memory for the codecs");
    let mut page = [0; PAGE_SIZE];
    page.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 37 * n % 11) as u8);
    let mut out = [0; MAX_STORED];
    let lz4 = codecs.lz4.compress(&page, &mut out).map(|len| [&[0], &out[..len]].concat());
    let zstd = codecs.zstd.compress(&page, &mut out).map(|len| [&[1], &out[..len]].concat());
    lz4.into_iter().chain(zstd).collect()
}

/// Bytes from the front of an input; zeros where it has ended.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }

    fn number(&mut self, len: usize) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(len);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
}

/// A mapped channel of this process's own, unmapped with it.
struct Mapped(usize);

impl Mapped {
    fn new() -> Mapped {
        Mapped(mem::map_anonymous(0, len_for(PAGES), 0).expect("there is memory for a channel"))
    }

    fn channel(&self) -> Channel {
        // SAFETY: a mapping of that length, on a page's boundary, which lives as long as `self`.
        unsafe { Channel::at(self.0, PAGES) }
    }

    /// Writes a slot of the store; what does not fit is left out.
    fn fill(&self, payload: usize, data: &[u8]) {
        let (start, end) = self.channel().store();
        for (n, chunk) in data.chunks(8).enumerate() {
            let at = start + payload * GRAIN + n * 8;
            if at + 8 > end {
                return;
            }
            // SAFETY: within the store, on a boundary of 8.
            let word = unsafe { &*(at as *const AtomicU64) };
            word.store(Script(chunk).number(8), Relaxed);
        }
    }
}

impl Mapped {
    /// Changes bits of a word that the daemon believes something of: of a range, of an entry, of a slot or of a job.
    fn flip(&self, place: usize, bits: u64) {
        let (channel, n) = (self.channel(), place / 4);
        let region = &channel.header().regions[n / 4 % REGIONS];
        let job = &channel.header().jobs[n / 2 % JOBS];
        let word = match place % 4 {
            0 => [&region.base, &region.pages, &region.first, &region.generation][n % 4],
            1 => channel.entry(n % PAGES).expect("a page of the channel"),
            2 => {
                let (start, end) = channel.store();
                // SAFETY: a word of the store, on a boundary of 8.
                unsafe { &*((start + n * 8 % (end - start)) as *const AtomicU64) }
            }
            _ => {
                [&job.state, &job.result][n % 2].fetch_xor(bits as u32, Relaxed);
                return;
            }
        };
        word.fetch_xor(bits << (n % 8 * 8), Relaxed);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no channel of it is left.
        let _ = unsafe { mem::munmap(self.0, len_for(PAGES)) };
    }
}

/// A channel that a process may write as it likes, read as the daemon reads it. The input is a list of writes.
pub(crate) fn channel(bytes: &[u8]) {
    let mapped = Mapped::new();
    let touched = write(&mapped, &mut Script(bytes), true);
    touched.into_iter().for_each(|addr| restore(&mapped.channel(), addr, true));
}

/// The same, while another thread changes words of it for as long as it is read. The input begins with which.
pub(crate) fn changing_channel(bytes: &[u8]) {
    let mapped = Mapped::new();
    let mut script = Script(bytes);
    let mut flips = Vec::from_iter((0..8).map(|_| (script.number(2) as usize, script.number(2))));
    flips.dedup();
    let touched = write(&mapped, &mut Script(script.0), false);
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                flips.iter().for_each(|&(place, bits)| mapped.flip(place, bits));
                begun.store(true, Relaxed);
            }
        });
        let _over = Over(&over);
        while !begun.load(Relaxed) {
            std::thread::yield_now();
        }
        for _ in 0..10 {
            touched.iter().for_each(|&addr| restore(&mapped.channel(), addr, false));
        }
        for n in 0..4 {
            compress(&mapped.channel(), n, &[], false);
        }
    });
}

/// Ends what goes on until then, also in a panic.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// As `channels`, with flips in the range, in its first entries and in the slot.
pub(crate) fn changing_channels() -> Vec<Vec<u8>> {
    let flips = |kinds: &[u16]| -> Vec<u8> {
        let places = (0..8).map(|n| kinds[n as usize % kinds.len()] + n * 4);
        // The slot begins at the 24th word; its length is 12 bits.
        let bits = |n: u16| if n.is_multiple_of(2) { 0xFFF } else { 1 << (n % 16) };
        places.flat_map(|at| [at + at % 4 / 2 * 96, bits(at / 4)].map(u16::to_le_bytes).concat()).collect()
    };
    let ways = [flips(&[0]), flips(&[1]), flips(&[2]), flips(&[0, 1, 2, 3])];
    ways.iter().flat_map(|way| channels().into_iter().map(|seed| [&way[..], &seed].concat())).collect()
}

/// Writes to the channel as the script says. Returns the addresses that are to be touched. With `still`, nobody else writes.
fn write(mapped: &Mapped, script: &mut Script<'_>, still: bool) -> Vec<usize> {
    let channel = mapped.channel();
    let mut touched = vec![script.number(8) as usize];
    while !script.0.is_empty() {
        match script.number(1) % 4 {
            0 => {
                let region = &channel.header().regions[script.number(1) as usize % REGIONS];
                let base = script.number(8);
                region.base.store(base, SeqCst);
                region.pages.store(script.number(8), SeqCst);
                region.first.store(script.number(8), SeqCst);
                region.generation.store(script.number(1), SeqCst);
                touched.push(base as usize);
            }
            1 => {
                let (payload, len) =
                    (script.number(2) as usize, script.number(2) as usize % (PAGE_SIZE + HEADER));
                mapped.fill(payload, script.bytes(len));
            }
            2 => {
                let (number, word) = (script.number(1) as usize % PAGES, script.number(8));
                channel.entry(number).expect("a page of the channel").store(word, SeqCst);
            }
            _ => compress(&channel, script.number(1) as usize, script.bytes(64), still),
        }
    }
    touched
}

/// As the daemon restores a touched page, up to the point where it would put it in place. With `still`, nobody writes meanwhile.
fn restore(channel: &Channel, addr: usize, still: bool) {
    let addr = addr & !(PAGE_SIZE - 1);
    let Some((region, generation, number)) = channel.find(addr) else { return };
    assert!(channel.is_still(region, generation) || !still);
    let entry = Entry(channel.entry(number).expect("what is found lies in the channel").load(SeqCst));
    if entry.state() != State::Stored {
        return;
    }
    let mut packed = [0; PAGE_SIZE];
    if let Some((codec, len)) = channel.read_slot(entry.payload(), addr, &mut packed) {
        assert!(len <= MAX_STORED);
        decompress(codec, &packed[..len]);
    }
}

/// Has a page compressed that repeats `pattern`, and sees that the result is one of those there are.
fn compress(channel: &Channel, from: usize, pattern: &[u8], still: bool) {
    let n = from % JOBS;
    if !pattern.is_empty() {
        let page: Vec<u8> = pattern.iter().copied().cycle().take(PAGE_SIZE).collect();
        channel.write_job(n, 0, &page);
    }
    channel.header().jobs[n].state.store(job::ASKED, Release);
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(|| Server::new().expect("there is memory for a server"));
        let done = server.compress_one(channel, n);
        assert!(done == Some(n) || !still, "{done:?}");
    });
    match channel.header().jobs[n].result.load(Relaxed) {
        job::SAME | job::INCOMPRESSIBLE => {}
        _ if !still => {}
        len => assert!(len as usize <= MAX_STORED),
    }
}

/// A region whose first page is stored, and one page to compress.
pub(crate) fn channels() -> Vec<Vec<u8>> {
    let region = |pages: u64| {
        let words = [BASE, pages, 0].map(u64::to_le_bytes).concat();
        [&BASE.to_le_bytes()[..], &[0, 0], &words, &[0]].concat()
    };
    let slot = |packed: &[u8]| {
        let (codec, data) = (u64::from(packed[0]), &packed[1..]);
        let header = (BASE / PAGE_SIZE as u64) << 16 | codec << 12 | data.len() as u64;
        let len = ((HEADER + data.len()) as u16).to_le_bytes();
        let stored = Entry::new(State::Stored, 3).0.to_le_bytes();
        [&[1, 3, 0][..], &len, &header.to_le_bytes(), data, &[2, 0], &stored].concat()
    };
    let mut seeds: Vec<_> = packed_pages().iter().map(|page| [region(4), slot(page)].concat()).collect();
    seeds.push([region(PAGES as u64), vec![3, 0, 1, 2, 3, 4]].concat());
    seeds
}
