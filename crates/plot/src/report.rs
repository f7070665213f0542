//! One self-contained page of text, tables and charts, for a browser and for paper.
//!
//! Invariants: the page names no other file and runs no script; all text is escaped; it follows the order of its blocks.

use crate::svg::escape;
use crate::Chart;
use std::fmt::Write;

/// A page.
#[derive(Debug)]
pub struct Report {
    /// Title of the page.
    pub title: String,
    /// One or two sentences below it.
    pub summary: String,
    /// What follows.
    pub blocks: Vec<Block>,
}

/// A piece of a page.
#[derive(Debug)]
pub enum Block {
    /// A heading.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// Text as it is, with its line breaks, in a font of equal widths.
    Plain(String),
    /// A table.
    Table(Table),
    /// A drawing and what it says.
    Chart {
        /// The drawing as SVG.
        svg: String,
        /// What the reader should see in it.
        caption: String,
    },
}

/// A table: the first column is set to the left, and so are columns of sentences; the others to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What it shows, below it.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Its rows, with as many cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn of<const N: usize>(
        caption: impl Into<String>,
        head: [&str; N],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Table {
        let head = head.map(str::to_owned).into();
        Table { caption: caption.into(), head, rows: rows.into_iter().collect() }
    }
}

impl Block {
    /// A drawing of `chart`.
    pub fn chart(chart: &dyn Chart, caption: impl Into<String>) -> Block {
        Block::Chart { svg: chart.svg(), caption: caption.into() }
    }
}

/// A column with a cell longer than this holds sentences.
const PROSE: usize = 45;

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, 'DejaVu Sans', Verdana, sans-serif; color: #222; background: #fff;
       max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin-bottom: .3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid #ccc; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: #555; padding-top: .4rem; }
th, td { padding: .22rem .5rem; text-align: right; border-bottom: 1px solid #e2e2e2; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
th:first-child, td:first-child, .prose { text-align: left; }
pre { font: .82rem/1.4 'DejaVu Sans Mono', Menlo, monospace; background: #f6f6f6; padding: .7rem; overflow-x: auto; }
figure { margin: 1.4rem 0; }
figure svg { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .88rem; max-width: 48rem; }
@media print {
  @page { margin: 15mm; }
  body { font-size: 10.5pt; margin: 0; max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  figure { margin: .6rem 0; }
  figure svg { max-width: 80%; }
  table { font-size: 7.5pt; }
  th, td { padding: .15rem .35rem; }
  pre { white-space: pre-wrap; }
  .scroll, pre { overflow: visible; }
}
";

impl Report {
    /// The page as HTML.
    pub fn html(&self) -> String {
        let (title, summary) = (escape(&self.title), escape(&self.summary));
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{summary}</p>\n"
        );
        for block in &self.blocks {
            block.write(&mut page);
        }
        page.push_str("</body>\n</html>\n");
        page
    }
}

impl Block {
    fn write(&self, page: &mut String) {
        // Writing into a string cannot fail.
        let _ = match self {
            Block::Heading(text) => writeln!(page, "<h2>{}</h2>", escape(text)),
            Block::Text(text) => writeln!(page, "<p>{}</p>", escape(text)),
            Block::Plain(text) => writeln!(page, "<pre>{}</pre>", escape(text)),
            Block::Table(table) => writeln!(page, "{}", table.html()),
            Block::Chart { svg, caption } => {
                let caption = escape(caption);
                writeln!(page, "<figure>\n{svg}<figcaption>{caption}</figcaption>\n</figure>")
            }
        };
    }
}

impl Table {
    fn html(&self) -> String {
        let columns = self.head.len();
        let long = |column: usize| {
            self.rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.len() > PROSE))
        };
        let prose: Vec<bool> = (0..columns).map(long).collect();
        let row = |cells: &[String], tag: &str| -> String {
            let cell = |(column, cell): (usize, &String)| {
                let class = if prose.get(column) == Some(&true) { " class=\"prose\"" } else { "" };
                format!("<{tag}{class}>{}</{tag}>", escape(cell))
            };
            let cells: String = cells.iter().enumerate().map(cell).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let body: String = self.rows.iter().map(|cells| row(cells, "td")).collect();
        let caption = if self.caption.is_empty() {
            String::new()
        } else {
            format!("<caption>{}</caption>\n", escape(&self.caption))
        };
        format!(
            "<div class=\"scroll\"><table>\n{caption}<thead>\n{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>",
            row(&self.head, "th")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_its_blocks_in_order_and_escapes_them() {
        let table = Table { caption: "c".into(), head: vec!["a".into()], rows: vec![vec!["<b>".into()]] };
        let blocks =
            vec![Block::Heading("first & only".into()), Block::Table(table), Block::Plain("x < y".into())];
        let html = Report { title: "t".into(), summary: String::new(), blocks }.html();
        let places: Vec<_> =
            ["first &amp; only", "<td>&lt;b&gt;</td>", "x &lt; y"].map(|s| html.find(s)).into();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {html}");
    }
}
