//! A FUSE server: one session over /dev/fuse, without libfuse.
//!
//! [`Session::start`] mounts, negotiates and runs a few reactor threads. Each has its own clone of the device, reads a
//! request, parses it ([`request`]), asks the [`Handler`], and writes the answer with one writev ([`reply`]). A handler
//! that has to wait answers [`Answer::Later`]; the future runs on tokio and its result is written by the reactor that
//! took the request, since the kernel looks a reply up among the requests of the clone it is written to.
//!
//! With [`Config::ring`], requests and answers go through io_uring instead (`ring`), where the kernel has that.
//!
//! Apart from `serve`, which hands requests to the vfs, this crate knows the protocol and nothing of files: no inode table,
//! no cache, no permission check.

#![deny(unsafe_code)]

pub mod abi;
mod away;
mod channel;
mod companion;
mod counters;
mod device;
mod hand_over;
mod handler;
mod init;
mod later;
mod memory;
pub mod mount;
mod mountinfo;
mod notify;
mod pause;
mod pipes;
mod reactor;
pub mod reply;
pub mod request;
mod ring;
mod serve;
mod session;
mod spares;
mod uring;
mod waiting;

pub use companion::{Asked, Companion, Outgoing, Taken};
pub use counters::{Class, Counts};
pub use device::Backings;
pub use hand_over::{BYTES_MAX as HAND_OVER_BYTES_MAX, FORMAT as HAND_OVER_FORMAT, HandOver, HandOverError};
pub use handler::{Answer, Handler, Interrupted, Interruptible, LateReply};
pub use init::{InitError, Negotiated};
pub use later::Parked;
pub use mount::{MountError, MountOptions, unmount};
pub use notify::{Notifier, NotifyError};
pub use pipes::Transfer;
pub use reply::{Attr, Body, DirBuffer, DirPlusBuffer, Entry, Reply, ReplyBuffer, StatFs};
pub use request::{Malformed, Operation, Request, SetAttr, SetTime};
pub use ring::RingOptions;
pub use serve::{PassthroughOptions, ServeOptions, VfsHandler};
pub use session::{CHANNELS_MAX, Config, LeftMount, PauseError, Paused, Session, StartError};
