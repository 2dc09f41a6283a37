//! What is asked without changing anything.

use crate::{
    Attr,
    records::Inode,
    rpc::codec::{Item, Reader, Wire},
    rpc::values::Name,
};
use sluice_base::{Ino, ObjectId};

/// A message type: a structure of public fields, in the order in which they travel.
macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? {
        $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? { $($(#[$field_meta])* pub $field: $type),* }
        crate::rpc::codec::fields! { $name $(<$life>)? { $($field),* } }
    )*};
}
pub(crate) use messages;

messages! {
    /// The entry `name` of a directory. That there is none is an answer that may be cached too.
    Lookup<'a> {
        /// The directory.
        dir: Ino,
        /// The name; `.` and `..` are answered.
        name: Name<'a>,
    }
    /// The attributes of an inode.
    Getattr {
        /// The inode.
        ino: Ino,
    }
    /// How an inode's bytes are kept, and its attributes.
    GetInode {
        /// The inode.
        ino: Ino,
    }
    /// Answers [`GetInode`].
    Shape {
        /// The attributes.
        attr: Attr,
        /// The stored record.
        inode: Inode,
    }
    /// The target of a symbolic link.
    Readlink {
        /// The link.
        ino: Ino,
    }
    /// Entries of a directory with cookies in (after, until], in order of cookie; `.` and `..` are the front end's.
    ReadDir {
        /// The directory.
        dir: Ino,
        /// Cookie of the last entry that is known.
        after: u64,
        /// Where the listing ends: see [`LastCookie`].
        until: u64,
        /// Whether attributes come along.
        with_attributes: bool,
        /// Most bytes of the page; the server has a limit of its own, [`Page::BYTES_MAX`].
        bytes_max: u32,
    }
    /// Answers [`ReadDir`].
    Page {
        /// Entries, at least one unless the directory has no more.
        entries: Vec<PageEntry>,
        /// The last entry up to `until` is among them.
        end: bool,
    }
    /// An entry of a directory.
    PageEntry {
        /// What it stands for.
        ino: Ino,
        /// Type bits of st_mode.
        kind: u32,
        /// Its place in readdir order.
        cookie: u64,
        /// The name.
        name: Vec<u8>,
        /// Attributes, if asked for and still there.
        attr: Option<Attr>,
    }
    /// A cookie not below that of any entry there is now.
    LastCookie {}
    /// The parent of a directory.
    Parent {
        /// The directory.
        dir: Ino,
    }
    /// The value of an extended attribute.
    Getxattr<'a> {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: &'a [u8],
    }
    /// The names of all extended attributes, each ended by NUL.
    Listxattr {
        /// The inode.
        ino: Ino,
    }
    /// The first span from `span` on that has extents.
    NextSpan {
        /// The file.
        ino: Ino,
        /// Number of a span.
        span: u64,
    }
    /// The extent records of spans in [first, end).
    GetExtents {
        /// The file.
        ino: Ino,
        /// First span.
        first: u64,
        /// Span behind the last one.
        end: u64,
    }
    /// Answers [`GetExtents`].
    ExtentPage {
        /// Spans that have records.
        spans: Vec<SpanRecords>,
        /// Where to go on when not all of them fit; spans before it that are not named have no records.
        next: Option<u64>,
    }
    /// Extent records of one span, as [`crate::extent::FileExtents::load`] takes them.
    SpanRecords {
        /// The span.
        span: u64,
        /// In order of sequence.
        records: Vec<SpanRecord>,
    }
    /// A stored extent record.
    SpanRecord {
        /// Its sequence; 0 is the packed one.
        sequence: u64,
        /// Its bytes: docs/disk-format.md.
        bytes: Vec<u8>,
    }
    /// The inline body of a file, when it has one.
    GetBody {
        /// The file.
        ino: Ino,
    }
    /// What a mount needs to open a file; the inode is held for the session until [`super::Release`].
    Open {
        /// The inode.
        ino: Ino,
    }
    /// Answers [`Open`], all of one moment.
    Opened {
        /// The attributes.
        attr: Attr,
        /// The stored record.
        inode: Inode,
        /// The inline body, when the file has one.
        body: Option<Vec<u8>>,
        /// The records of span 0, unless they are large ([`Opened::SPAN_BYTES_MAX`]): then they are asked for apart.
        first_span: Option<SpanRecords>,
    }
    /// The record of an object.
    GetObject {
        /// The object.
        id: ObjectId,
    }
    /// Bytes and inodes in use.
    GetUsage {}
}

impl Item for PageEntry {}
impl Item for SpanRecords {}
impl Item for SpanRecord {}

impl Page {
    /// Most bytes of a page, but for a single entry, which is far smaller.
    pub const BYTES_MAX: usize = 256 << 10;
}

impl ExtentPage {
    /// Most bytes of records in a page, but for a single span: that one goes whole.
    pub const BYTES_MAX: usize = 256 << 10;
}

impl Opened {
    /// Most bytes of extent records that come with an open.
    pub const SPAN_BYTES_MAX: usize = 16 << 10;
}

impl SpanRecords {
    /// As [`crate::extent::FileExtents::load`] takes them.
    pub fn into_records(self) -> (u64, Vec<(u64, Vec<u8>)>) {
        (self.span, self.records.into_iter().map(|record| (record.sequence, record.bytes)).collect())
    }

    /// Bytes of a record beside its own: sequence and length.
    pub(crate) const RECORD_BYTES: usize = 12;

    /// Bytes of the records.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.bytes.len() + Self::RECORD_BYTES).sum()
    }
}
