//! The words for what became of a program's memory, defined once: for the help of `stat` and `top`, and for docs/usage.md.

/// The text, for `concat!`.
macro_rules! words {
    () => {
        "\
Words:
  managed    memory of the program that may be folded
  set aside  out of its view, still whole; folded if untouched for a cold age
  folded     compressed and given back to the kernel; comes back on touch
  into       what the compressed pages take
  cost       what folding takes: into, gaps, tables, dictionaries and buffers
  saved      folded less the cost"
    };
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_defines_the_words_as_the_help_does() {
        let guide = include_str!("../../../docs/usage.md");
        assert_eq!(guide.matches(words!()).count(), 1, "docs/usage.md has no paragraph\n{}", words!());
    }
}
