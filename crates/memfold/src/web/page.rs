//! The page: one file, which asks nobody for anything but this server for news.

use memfold_sys::random;
use std::fmt::Write;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Stands in the HTML where the number does that marks style and script as ours.
const NONCE: &str = "NONCE";

/// The page, and the policy that has a browser run nothing else in it (Content Security Policy, level 3).
pub fn make() -> (String, String) {
    let mut bytes = [0; 16];
    random::fill(&mut bytes).expect("the kernel has random bytes");
    let nonce = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    let page = HTML.replace(NONCE, &nonce).replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
    (page, policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_file_that_names_no_other_and_each_has_a_number_of_its_own() {
        let (page, policy) = make();
        let nonce = policy.split("'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
        assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
        assert!(!page.contains(NONCE) && !page.contains("/*S"), "a part was not put in");
        for outside in ["http://", "https://", "//cdn", "@import", "innerHTML", "eval(", "style=\""] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_ne!(make().1, policy);
    }
}
