//! What can be wrong with a trace.

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file, or the temporary one that a long trace is kept in, cannot be read or written.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// It ends in the middle of a record.
    #[error("truncated: {left} bytes are left at offset {offset}, and {what} has {whole}")]
    Truncated {
        /// Where the last record begins, bytes from the start of the unpacked trace.
        offset: u64,
        /// Bytes there are of it.
        left: usize,
        /// What should be there.
        what: &'static str,
        /// Bytes that it should have.
        whole: usize,
    },
    /// Something that cannot stand where it stands.
    #[error("damaged at offset {offset}: {why}")]
    Damaged {
        /// Where, bytes from the start of the unpacked trace.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// A line has no such column.
    #[error(
        "line {line} (offset {offset}) has {columns} columns; the {what} is expected in column {column}"
    )]
    NoColumn {
        /// The line, from 1.
        line: u64,
        /// Where it begins, bytes from the start of the unpacked trace.
        offset: u64,
        /// The columns that it has.
        columns: usize,
        /// What was looked for.
        what: &'static str,
        /// The column that was asked for.
        column: usize,
    },
    /// A time that the format written to has no room for.
    #[error(
        "request {number} has the time {time}, and oracleGeneral holds times up to 4294967295: write another format, or \
         scale the times"
    )]
    Time {
        /// The request, from 1.
        number: u64,
        /// Its time.
        time: u64,
    },
    /// It has no request.
    #[error("it has no request")]
    Empty,
    /// More pages than page numbers.
    #[error("it asks for more than {} different pages", crate::limits::MOST_PAGES)]
    TooManyPages,
    /// More requests than can be numbered.
    #[error("it has more than {} requests", crate::limits::MOST_REQUESTS)]
    TooManyRequests,
}

impl From<TraceError> for std::io::Error {
    fn from(error: TraceError) -> std::io::Error {
        match error {
            TraceError::Io(error) => error,
            other => std::io::Error::other(other),
        }
    }
}
