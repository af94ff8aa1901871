//! How the stand-in is set up, and which failures it plays.

use std::collections::HashMap;
use std::ffi::c_int;
use std::time::Duration;

use crate::codes::Code;

/// The number of a call of a function, counted from 1.
pub(crate) type CallNumber = u64;

/// The settings of the variable `MC_CUDA_STANDIN`, and of later texts.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The physical GPU behind each ordinal.
    pub(crate) visible: Vec<usize>,
    /// Bytes of each GPU.
    pub(crate) memory: usize,
    pub(crate) version: c_int,
    /// The time that a copy takes at least.
    pub(crate) delay: Duration,
    /// Functions that `cuGetProcAddress` does not find.
    pub(crate) missing: Vec<String>,
    pub(crate) fails: HashMap<String, Vec<(CallNumber, Code)>>,
    /// Calls whose work never ends.
    pub(crate) hangs: HashMap<String, Vec<CallNumber>>,
    /// Calls that do not return.
    pub(crate) blocks: HashMap<String, Vec<CallNumber>>,
    /// The code with which the next copy loses its context.
    pub(crate) lost: Option<Code>,
    /// Whether hung work ends, and calls that were blocked return.
    pub(crate) resumed: bool,
    /// Whether the legacy stream and device-wide waiting are violations.
    pub(crate) forbid_legacy: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            visible: vec![0, 1],
            memory: 256 << 20,
            version: 12_080,
            delay: Duration::from_micros(50),
            missing: Vec::new(),
            fails: HashMap::new(),
            hangs: HashMap::new(),
            blocks: HashMap::new(),
            lost: None,
            resumed: false,
            forbid_legacy: false,
        }
    }
}

impl Settings {
    /// Applies a text of `key=value` pairs with commas between them.
    ///
    /// # Errors
    /// The pair that is not understood; those before it are applied.
    pub(crate) fn apply(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            self.apply_pair(pair).ok_or_else(|| pair.to_owned())?;
        }
        Ok(())
    }

    fn apply_pair(&mut self, pair: &str) -> Option<()> {
        let (key, value) = pair.split_once('=')?;
        match key {
            "devices" => self.visible = (0..value.parse().ok()?).collect(),
            "visible" => {
                let numbers: Result<_, _> = value.split('+').map(str::parse).collect();
                self.visible = numbers.ok()?;
            }
            "memory" => self.memory = value.parse().ok()?,
            "version" => self.version = value.parse().ok()?,
            "delay_us" => self.delay = Duration::from_micros(value.parse().ok()?),
            "missing" => self.missing = value.split('+').map(str::to_owned).collect(),
            "fail" => {
                let mut parts = value.splitn(3, ':');
                let (function, call) = (parts.next()?, parts.next()?.parse().ok()?);
                let code = Code(parts.next()?.parse().ok()?);
                self.fails.entry(function.to_owned()).or_default().push((call, code));
            }
            "hang" | "block" => {
                let (function, call) = value.split_once(':')?;
                let call = call.parse().ok()?;
                let calls = if key == "hang" { &mut self.hangs } else { &mut self.blocks };
                calls.entry(function.to_owned()).or_default().push(call);
            }
            "lost" => {
                let code: c_int = value.parse().ok()?;
                self.lost = Some(Code(if code < 200 { 700 } else { code }));
            }
            "resume" => self.resumed = value == "1",
            "forbid_legacy" => self.forbid_legacy = value == "1",
            _ => return None,
        }
        Some(())
    }
}
