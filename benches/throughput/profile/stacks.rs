//! The samples of `perf script`, folded: calls that share their callers share a frame.

use std::collections::BTreeMap;

use rustc_demangle::demangle;

/// Set in the addresses of kernels, never in those of programs: x86-64 and aarch64 alike.
const KERNEL_BIT: u64 = 1 << 63;

/// What perf writes for a name or a file that it does not know.
const UNKNOWN: &str = "[unknown]";

/// What perf writes for the file of a function that the compiler inlined.
const INLINED: &str = "inlined";

/// The function that Rust's own backtraces end at: its callers start threads and catch panics.
const OUTERMOST: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// A function as it was called from one place, or a thread, or all threads together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Samples in which it ran, or something that it called.
    pub(super) samples: u32,
    /// Of these, the ones in which it ran itself.
    pub(super) own: u32,
    /// What it called.
    pub(super) callees: BTreeMap<Function, Self>,
}

/// A name of the flame graph. Ordered by name, so that the same run is drawn the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Thread,
    Program,
    /// Into the next function below that has code of its own.
    Inlined,
    Kernel,
}

/// A function, and the one that it was inlined into if it was. The names of inlined ones lack their
/// path.
pub(super) type Place<'a> = (&'a Function, Option<&'a str>);

impl Frame {
    /// Reads what `perf script -F comm,ip,sym,dso` wrote.
    ///
    /// ```text
    /// worker-0                  name of the thread
    ///     ffffffff81a0 tun_do_read ([kernel.kallsyms])      innermost first
    ///             55d0 strait::next (inlined)
    ///             55d0 strait::main (/usr/bin/strait)
    ///                                                       an empty line ends the sample
    /// ```
    pub(super) fn from_script(script: &str) -> Self {
        let mut all = Self::default();
        let mut lines = script.lines();
        while let Some(head) = lines.by_ref().find(|line| !line.trim().is_empty()) {
            let calls = lines.by_ref().take_while(|line| !line.trim().is_empty());
            let calls: Vec<_> = calls.filter_map(call).collect();
            let mut stack = innermost_first(&calls);
            if let Some(outermost) = stack.iter().position(|function| function.name == OUTERMOST) {
                stack.truncate(outermost);
            }
            stack.push(Function { name: head.trim().to_owned(), origin: Origin::Thread });
            all.add(stack);
        }

        all
    }

    /// The functions that ran most often, whoever called them, with their samples.
    pub(super) fn busiest(&self) -> Vec<(Place<'_>, u32)> {
        let mut sums = BTreeMap::new();
        self.sum_up(None, &mut sums);
        let mut busiest: Vec<_> = sums.into_iter().collect();
        busiest.sort_by_key(|(_, own)| std::cmp::Reverse(*own));

        busiest
    }

    /// Frames on top of each other, this one included.
    pub(super) fn height(&self) -> u32 {
        1 + self.callees.values().map(Self::height).max().unwrap_or_default()
    }

    /// One sample, innermost function first.
    fn add(&mut self, mut stack: Vec<Function>) {
        self.samples += 1;
        match stack.pop() {
            Some(outermost) => self.callees.entry(outermost).or_default().add(stack),
            None => self.own += 1,
        }
    }

    fn sum_up<'a>(&'a self, host: Option<&'a str>, sums: &mut BTreeMap<Place<'a>, u32>) {
        for (function, frame) in &self.callees {
            let (place, host) = match function.origin {
                Origin::Inlined => ((function, host), host),
                Origin::Thread | Origin::Program | Origin::Kernel => {
                    ((function, None), Some(function.name.as_str()))
                }
            };
            if frame.own > 0 {
                *sums.entry(place).or_default() += frame.own;
            }
            frame.sum_up(host, sums);
        }
    }
}

/// Of the calls at one address all are inlined but the last, whose code it is.
///
/// Where the debug information lacks full names, perf has that of the last function in place of the
/// first function's, which is lost.
fn innermost_first(calls: &[(u64, Function)]) -> Vec<Function> {
    let is_inlined = |function: &Function| function.origin == Origin::Inlined;
    let mut stack = Vec::with_capacity(calls.len());
    for group in calls
        .chunk_by(|(a, callee), (b, caller)| a == b && (is_inlined(callee) || is_inlined(caller)))
    {
        let (inlined, last) = match group {
            [(_, host), inlined @ .., _] if !is_inlined(host) => (inlined, host),
            [inlined @ .., (_, last)] => (inlined, last),
            [] => continue,
        };
        stack.extend(inlined.iter().map(|(_, function)| function.clone()));
        let origin = if is_inlined(last) { Origin::Program } else { last.origin };
        stack.push(Function { origin, ..last.clone() });
    }

    stack
}

/// `address name (file)`; names and files may have spaces and brackets in them. `None` if it is
/// something else.
fn call(line: &str) -> Option<(u64, Function)> {
    let (address, rest) = line.trim().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (name, file) = rest.trim_end_matches(" (deleted))").rsplit_once(" (")?;
    let file = file.trim_end_matches(')');

    let name = match name.trim() {
        UNKNOWN if file != UNKNOWN => {
            format!("[{}]", file.rsplit('/').next().unwrap_or(file).trim_matches(['[', ']']))
        }
        name => format!("{:#}", demangle(name)),
    };
    let origin = match file {
        INLINED => Origin::Inlined,
        _ if address & KERNEL_BIT != 0 => Origin::Kernel,
        _ => Origin::Program,
    };

    Some((address, Function { name, origin }))
}

#[cfg(test)]
mod tests;
