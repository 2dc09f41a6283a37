//! Bytes of messages: fields one behind the other, fixed width, little endian. docs/metadata-rpc.md has the layout.
//!
//! Decoders are total: any bytes are answered with a valid value or `None`, and nothing is allocated that the bytes do not pay
//! for.

/// What is left of a message.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A value with one form in messages.
pub trait Wire<'a>: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the value off; `None` when the bytes are not one.
    fn take(from: &mut Reader<'a>) -> Option<Self>;
}

/// A value that may stand in a list. Each takes at least one byte.
pub trait Item {}

/// Takes a value that ends where the bytes do.
pub(crate) fn whole<'a, T: Wire<'a>>(bytes: &'a [u8]) -> Option<T> {
    let mut reader = Reader::new(bytes);
    let value = T::take(&mut reader)?;
    reader.is_empty().then_some(value)
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl<'a> Wire<'a> for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Reader<'a>) -> Option<Self> {
                from.array().map(<$type>::from_le_bytes)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i64);

impl<'a> Wire<'a> for () {
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut Reader<'a>) -> Option<Self> {
        Some(())
    }
}

impl<'a> Wire<'a> for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        Some(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl<'a> Wire<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.len()).expect("messages are far below 4 GiB");
        len.put(out);
        out.extend_from_slice(self);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        let len = u32::take(from)?;
        from.bytes(len as usize)
    }
}

impl<'a> Wire<'a> for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        <&[u8]>::take(from).map(<[u8]>::to_vec)
    }
}

impl<'a, T: Wire<'a> + Item> Wire<'a> for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.len()).expect("messages are far below 4 GiB");
        count.put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(from: &mut Reader<'a>) -> Option<Self> {
        // Grows as items are found, so a count that the bytes do not hold costs nothing.
        let mut items = Vec::new();
        for _ in 0..u32::take(from)? {
            items.push(T::take(from)?);
        }
        Some(items)
    }
}

/// Fields in order, each as its type says.
macro_rules! fields {
    ($($name:ty { $($field:ident),* $(,)? })*) => {$(
        impl<'a> Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
                let _ = out;
            }
            fn take(from: &mut Reader<'a>) -> Option<Self> {
                let _ = &from;
                Some(Self { $($field: Wire::take(from)?),* })
            }
        }
    )*};
}
pub(crate) use fields;

/// Enumerations without values, one byte each.
macro_rules! tags {
    ($($name:ty { $($tag:literal = $variant:ident),* $(,)? })*) => {$(
        impl<'a> Wire<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $(Self::$variant => $tag),* });
            }
            fn take(from: &mut Reader<'a>) -> Option<Self> {
                match u8::take(from)? {
                    $($tag => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}
pub(crate) use tags;
