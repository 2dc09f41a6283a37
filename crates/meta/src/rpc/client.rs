//! The session's side of the messages: requests to bytes, bytes to answers. No I/O, no cache.

use super::{
    fault::Fault,
    message::{self, Ack, Call, Changed, Effect, Number, Push, ReplyHead},
};

/// An answer with what may be done with it.
#[derive(Debug)]
pub struct Answer<T> {
    /// Whether it may be cached, and whether the lease goes on.
    pub head: ReplyHead,
    /// The answer. What a change touched goes out of the session's caches before its value goes in.
    pub answer: Result<Changed<T>, Fault>,
}

/// The body of a call that changes nothing, or that may be repeated without a number.
pub fn request<'a, C: Call<'a>>(call: &C) -> Vec<u8> {
    message::encode_call(call, Number::default())
}

/// The body of a change, under its number.
pub fn change<'a, C: Call<'a>>(call: &C, number: Number) -> Vec<u8> {
    message::encode_call(call, number)
}

/// The fields of a call, for [`again`].
pub fn fields<'a, C: Call<'a>>(call: &C) -> Vec<u8> {
    let mut fields = Vec::new();
    call.put(&mut fields);
    fields
}

/// The body of a change that was answered before, from its [`fields`].
pub fn again(fields: &[u8], number: Number) -> Vec<u8> {
    message::encode_fields(fields, number)
}

/// The answer to a call. An error of the outer kind means that the bytes are none.
pub fn reply<'a, C: Call<'a>>(body: &[u8]) -> Result<Answer<C::Reply>, Fault> {
    if matches!(C::METHOD.effect(), Effect::Change | Effect::Touch) {
        let (head, answer) = ReplyHead::decode::<Changed<C::Reply>>(body)?;
        return Ok(Answer { head, answer });
    }
    let (head, answer) = ReplyHead::decode::<C::Reply>(body)?;
    Ok(Answer { head, answer: answer.map(|value| Changed { value, touched: Vec::new(), dirs: Vec::new() }) })
}

/// A push, and the ack to send once nothing that it names is served from a cache any more.
pub fn push(body: &[u8]) -> Result<(Push, Ack), Fault> {
    let push = Push::decode(body)?;
    let ack = Ack { up_to: push.number };
    Ok((push, ack))
}
