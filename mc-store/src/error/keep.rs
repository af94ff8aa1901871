//! Why a client cannot keep its segment for its next process.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a client cannot keep its segment for its next process
/// ([`keep_segment`](crate::ClientBuilder::keep_segment)).
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum KeepError {
    /// There is no segment, or its memory ends with the process.
    #[error(
        "keep_segment needs a segment whose memory is a file: give segment_file a path and \
         global_segment_size a size"
    )]
    NoFile,
    /// The next process would be reached elsewhere.
    #[error(
        "keep_segment needs the same port for peers at each start: give a port with listen \
         (--data_port of mc-node)"
    )]
    NoPort,
    /// A network card may write the memory while the process ends.
    #[error(
        "keep_segment does not go together with RDMA, whose devices may still write the memory of a \
         process that has been killed; leave one of them out"
    )]
    Rdma,
    /// The file system takes no record.
    #[error(
        "keep_segment cannot write its record beside {}: hugetlbfs has no files to write; name a file \
         on tmpfs, which has huge pages with the mount option huge=always",
        path.display()
    )]
    HugePages { path: PathBuf },
    /// Another process has the file, and does not end.
    #[error(
        "the segment file {} has been in use by another process for {waited:?}; end that process, or name \
         another file",
        path.display()
    )]
    InUse { path: PathBuf, waited: Duration },
    /// The file or its file system cannot be looked at.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}
