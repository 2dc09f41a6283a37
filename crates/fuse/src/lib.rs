//! A FUSE server: one session over /dev/fuse, without libfuse.
//!
//! [`Session::start`] mounts, negotiates and runs a few reactor threads. Each has its own clone of the device, reads a
//! request, parses it ([`request`]), asks the [`Handler`], and writes the answer with one writev ([`reply`]). A handler
//! that has to wait answers [`Answer::Later`]; the future runs on tokio and its result is written by the reactor that
//! took the request, since the kernel looks a reply up among the requests of the clone it is written to.
//!
//! Apart from `serve`, which hands requests to the vfs, this crate knows the protocol and nothing of files: no inode table,
//! no cache, no permission check.

#![deny(unsafe_code)]

pub mod abi;
mod away;
mod counters;
mod device;
mod handler;
mod init;
mod later;
pub mod mount;
mod mountinfo;
mod notify;
mod reactor;
pub mod reply;
pub mod request;
mod serve;
mod session;
mod waiting;

pub use counters::{Class, Counts};
pub use handler::{Answer, Handler, Interrupted, Interruptible, LateReply};
pub use init::{InitError, Negotiated};
pub use mount::{MountError, MountOptions, unmount};
pub use notify::{Notifier, NotifyError};
pub use reply::{Attr, Body, DirBuffer, DirPlusBuffer, Entry, Reply, ReplyBuffer, StatFs};
pub use request::{Malformed, Operation, Request, SetAttr, SetTime};
pub use serve::{ServeOptions, VfsHandler};
pub use session::{Config, Session, StartError};
