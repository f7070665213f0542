//! Compressed pages out of a store that somebody else wrote: that in a core dump, which `memfold core` reads.

use memfold_pager::codec::{CodecId, Codecs, Dictionaries, MAX_STORED};
use memfold_sys::PAGE_SIZE;
use std::cell::RefCell;

thread_local! {
    static CODECS: RefCell<Option<Codecs>> = const { RefCell::new(None) };
}

/// Decompresses any bytes. The first one picks the codec.
pub(crate) fn unpack(bytes: &[u8]) {
    let Some((&first, data)) = bytes.split_first() else { return };
    let Some(codec) = CodecId::from_bits(u64::from(first % 4)) else { return };
    CODECS.with_borrow_mut(|codecs| {
        let codecs = codecs.get_or_insert_with(|| Codecs::new().expect("there is memory for the codecs"));
        let data = &data[..data.len().min(PAGE_SIZE)];
        codecs.decompress(codec, &Dictionaries::new(), data, &mut [0; PAGE_SIZE]);
    });
}

pub(crate) fn packed_pages() -> Vec<Vec<u8>> {
    let mut codecs = Codecs::new().expect("there is memory for the codecs");
    let mut page = [0; PAGE_SIZE];
    page.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n / 37 * n % 11) as u8);
    let mut out = [0; MAX_STORED];
    let mut packed = |codec: CodecId| {
        // SAFETY: it is readable.
        let (codec, len) =
            unsafe { codecs.compress_at(codec.effort(), None, page.as_ptr() as usize, &mut out) }?;
        Some([&[codec.bits() as u8], &out[..len]].concat())
    };
    let whole = [&[CodecId::Whole.bits() as u8], &page[..]].concat();
    CodecId::ALONE.into_iter().filter_map(&mut packed).chain([whole]).collect()
}
