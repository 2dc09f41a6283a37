//! Requests and replies. docs/metadata-rpc.md tells how their bytes lie; the order of the fields is here.
//!
//! A request is one type ([`Call`]) with a [`Method`]; [`Request`] is any of them. A reply is the call's `Reply`, for changes
//! within [`Changed`], behind a [`ReplyHead`].

mod change;
mod lock;
mod push;
mod read;
mod session;

pub use change::*;
pub use lock::*;
pub use push::*;
pub use read::*;
pub use session::*;

use super::{
    codec::{Reader, Wire},
    fault::Fault,
};
use sluice_base::Ino;

/// Version byte that every message opens with.
pub const VERSION: u8 = 5;
/// Longest request, in bytes: the largest are a publish of 4096 extents (182 KiB) and an extended attribute (64 KiB).
pub const REQUEST_BYTES_MAX: usize = 256 << 10;

/// What a method does to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Read,
    /// Changes it, once for each number: the request carries a [`Number`].
    Change,
    /// Changes it; doing it again changes nothing more, so it carries no number.
    Touch,
    /// Is about the session itself.
    Session,
}

/// A request with its method and the type of its reply.
pub trait Call<'a>: Wire<'a> {
    /// The method.
    const METHOD: Method;
    /// What it answers; within [`Changed`] for [`Effect::Change`] and [`Effect::Touch`].
    type Reply: for<'r> Wire<'r>;
}

macro_rules! calls {
    ($($number:literal $effect:ident $name:ident $(<$life:lifetime>)? -> $reply:ty,)*) => {
        /// What is asked: a number beside the body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Method {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name = $number,)*
        }

        impl Method {
            /// All of them.
            pub const ALL: &'static [Method] = &[$(Method::$name),*];

            /// The method of a number.
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Method::$name),)*
                    _ => None,
                }
            }

            /// Its number.
            pub fn number(self) -> u16 {
                self as u16
            }

            /// What it does.
            pub fn effect(self) -> Effect {
                match self {
                    $(Method::$name => Effect::$effect,)*
                }
            }
        }

        /// Any request.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is its call")]
        pub enum Request<'a> {
            $($name($name $(<$life>)?),)*
        }

        impl<'a> Request<'a> {
            fn take(method: Method, from: &mut Reader<'a>) -> Option<Self> {
                match method {
                    $(Method::$name => Wire::take(from).map(Request::$name),)*
                }
            }

            /// Its method.
            pub fn method(&self) -> Method {
                match self {
                    $(Request::$name(_) => Method::$name,)*
                }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Request::$name(call) => call.put(out),)*
                }
            }
        }

        $(
            impl<'a> Call<'a> for $name $(<$life>)? {
                const METHOD: Method = Method::$name;
                type Reply = $reply;
            }
        )*

        /// Parses the body of a reply as that of `method`: whether it is one. For tests and fuzzing.
        pub fn is_reply(method: Method, body: &[u8]) -> bool {
            match method {
                $(Method::$name => super::client::reply::<$name>(body).is_ok(),)*
            }
        }
    };
}

calls! {
    1 Read Lookup<'a> -> crate::Attr,
    2 Read Getattr -> crate::Attr,
    3 Read GetInode -> Shape,
    4 Read Readlink -> Vec<u8>,
    5 Read ReadDir -> Page,
    6 Read LastCookie -> u64,
    7 Read Parent -> sluice_base::Ino,
    8 Read Getxattr<'a> -> Vec<u8>,
    9 Read Listxattr -> Vec<u8>,
    10 Read NextSpan -> Option<u64>,
    11 Read GetExtents -> ExtentPage,
    12 Read GetBody -> Option<Vec<u8>>,
    13 Read Open -> Opened,
    14 Read GetObject -> Option<crate::records::ObjectRecord>,
    15 Read GetUsage -> crate::records::Usage,
    32 Change Create<'a> -> crate::Attr,
    33 Change CreateUnnamed -> crate::Attr,
    34 Change Link<'a> -> crate::Attr,
    35 Change Unlink<'a> -> crate::Unlinked,
    36 Change Rmdir<'a> -> crate::Unlinked,
    37 Change Rename<'a> -> Option<crate::Unlinked>,
    38 Change Setattr -> crate::Attr,
    39 Touch UpdateAtime -> (),
    40 Change Setxattr<'a> -> (),
    41 Change Removexattr<'a> -> (),
    42 Change Publish<'a> -> Published,
    43 Touch ObjectStored -> (),
    44 Touch ForgetObject -> bool,
    64 Session Begin<'a> -> Begun,
    65 Session Resume -> Resumed,
    66 Session Renew -> (),
    67 Session End -> (),
    68 Session Release -> (),
    69 Session Hold -> (),
    70 Session ListSessions -> Vec<SessionStatus>,
    71 Session SyncLog -> bool,
    72 Session Resent -> (),
    73 Session Ship -> (),
    80 Session Lock -> LockAnswer,
    81 Session TestLock -> LockTest,
    82 Session AssertLocks -> bool,
}

/// Which of its changes a session asks for. A number is given once; a retry repeats it, and gets the first answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Number {
    /// 1, 2, 3... in the order of the session.
    pub number: u64,
    /// The answers of all numbers up to here have arrived, and what they did survives a power loss of the server: their results
    /// may be forgotten.
    pub seen_up_to: u64,
    /// It was answered before, by a server that was started again since and may have lost it: the inode that it made, or 0 where
    /// it made none. It is made with the same number again.
    pub again: Option<Ino>,
}

super::codec::fields! { Number { number, seen_up_to, again } }

impl Request<'_> {
    /// The body, for a peer that knows the method. `number` counts for [`Effect::Change`] alone.
    pub fn encode(&self, number: Number) -> Vec<u8> {
        encode_with(self.method().effect(), number, |out| self.put(out))
    }
}

/// The body of one call.
pub(crate) fn encode_call<'a, C: Call<'a>>(call: &C, number: Number) -> Vec<u8> {
    encode_with(C::METHOD.effect(), number, |out| call.put(out))
}

/// The body of a change whose fields are bytes already.
pub(crate) fn encode_fields(fields: &[u8], number: Number) -> Vec<u8> {
    encode_with(Effect::Change, number, |out| out.extend_from_slice(fields))
}

fn encode_with(effect: Effect, number: Number, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![VERSION];
    if effect == Effect::Change {
        number.put(&mut out);
    }
    put(&mut out);
    out
}

/// A request that parses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// What is asked.
    pub request: Request<'a>,
    /// The number of a [`Effect::Change`]; zeros for others.
    pub number: Number,
}

/// Parses the body of a request of `method`.
pub fn parse(method: u16, body: &[u8]) -> Result<Parsed<'_>, Fault> {
    let version = *body.first().ok_or(Fault::Malformed)?;
    if version != VERSION {
        return Err(Fault::Version(version));
    }
    let method = Method::from_number(method).ok_or(Fault::Method(method))?;
    let take = || {
        let mut from = Reader::new(&body[1..]);
        let numbered = method.effect() == Effect::Change;
        let number = if numbered { Number::take(&mut from)? } else { Number::default() };
        let request = Request::take(method, &mut from)?;
        let sound = !numbered || number.number > 0;
        (from.is_empty() && sound).then_some(Parsed { request, number })
    };
    let parsed = if body.len() > REQUEST_BYTES_MAX { None } else { take() };
    parsed.ok_or(Fault::Malformed)
}

/// What precedes every answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHead {
    /// The session may cache what the answer says, unless a push with a number above [`ReplyHead::stamp`] was taken before.
    pub cacheable: bool,
    /// The session's lease goes on from when the request was sent.
    pub renewed: bool,
    /// The last push that had been sent to the session when its interest was noted.
    pub stamp: u64,
    /// Which run of the server answers: each has a greater number. 0 when that is not said.
    pub life: u32,
    /// The server's log of this run survives power loss up to this record.
    pub synced: u64,
    /// The change that is answered survives power loss with this record of this run. 0 for what is no change.
    pub record: u64,
}

const OK: u8 = 1;
const CACHEABLE: u8 = 2;
const RENEWED: u8 = 4;

impl ReplyHead {
    /// The body of an answer: the bytes of a [`Call::Reply`], perhaps in [`Changed`], or those of a [`Fault`].
    pub fn encode(self, answer: Result<&[u8], &[u8]>) -> Vec<u8> {
        let flag = |on, bit| if on { bit } else { 0 };
        let flags = flag(answer.is_ok(), OK) | flag(self.cacheable, CACHEABLE) | flag(self.renewed, RENEWED);
        let mut out = vec![VERSION, flags];
        self.stamp.put(&mut out);
        self.life.put(&mut out);
        self.synced.put(&mut out);
        self.record.put(&mut out);
        let (Ok(bytes) | Err(bytes)) = answer;
        out.extend_from_slice(bytes);
        out
    }

    /// Head and answer of a body.
    pub fn decode<'a, T: Wire<'a>>(body: &'a [u8]) -> Result<(Self, Result<T, Fault>), Fault> {
        let (head, ok, mut from) = Self::open(body)?;
        let mut take = || {
            let answer = if ok { Ok(T::take(&mut from)?) } else { Err(Fault::take(&mut from)?) };
            from.is_empty().then_some((head, answer))
        };
        take().ok_or(Fault::Malformed)
    }

    /// Head of a body, and whether the answer is a fault, whatever else it is.
    pub fn outcome(body: &[u8]) -> Result<(Self, Result<(), Fault>), Fault> {
        match Self::open(body)? {
            (head, true, _) => Ok((head, Ok(()))),
            (_, false, _) => Self::decode::<()>(body),
        }
    }

    /// Head, whether the value follows, and what follows.
    fn open(body: &[u8]) -> Result<(Self, bool, Reader<'_>), Fault> {
        let version = *body.first().ok_or(Fault::Malformed)?;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let take = || {
            let mut from = Reader::new(&body[1..]);
            let flags = u8::take(&mut from)?;
            if flags & !(OK | CACHEABLE | RENEWED) != 0 {
                return None;
            }
            let stamp = u64::take(&mut from)?;
            let (life, synced, record) = (u32::take(&mut from)?, u64::take(&mut from)?, u64::take(&mut from)?);
            let (cacheable, renewed) = (flags & CACHEABLE != 0, flags & RENEWED != 0);
            Some((Self { cacheable, renewed, stamp, life, synced, record }, flags & OK != 0, from))
        };
        take().ok_or(Fault::Malformed)
    }
}

#[cfg(test)]
mod tests;
