//! The calls there are.

use core::fmt;

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A call of `MasterService`, with its number in a frame. Numbers are
        /// never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Method {
            $($(#[$doc])* $name = $number,)*
        }

        impl Method {
            /// Every method, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The method with this number.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The rpc's name in the `.proto`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

methods! {
    /// Where to read an object.
    GetReplicaList = 1,
    /// Space to write an object into.
    PutStart = 2,
    /// The object is written.
    PutEnd = 3,
    /// Gives up a put.
    PutRevoke = 4,
    /// Removes an object.
    Remove = 5,
    /// Removes every object.
    RemoveAll = 6,
    /// Whether an object can be read.
    ExistKey = 7,
    /// Contributes a segment.
    MountSegment = 8,
    /// Takes a segment back.
    UnmountSegment = 9,
    /// Says that a client lives.
    Ping = 10,
    /// How many leading keys exist.
    LongestPrefix = 11,
    /// `GetReplicaList` of many keys.
    BatchGetReplicaList = 12,
    /// `PutStart` of many objects.
    BatchPutStart = 13,
    /// `PutEnd` of many objects.
    BatchPutEnd = 14,
    /// `PutRevoke` of many objects.
    BatchPutRevoke = 15,
    /// `ExistKey` of many keys.
    BatchExistKey = 16,
    /// `Remove` of many keys.
    BatchRemove = 17,
    /// Everything known of one object.
    DescribeObject = 18,
    /// A page of keys.
    ListKeys = 19,
    /// The master's totals.
    ClusterReport = 20,
    /// Attaches a suspended segment again.
    ReMountSegment = 21,
}

impl Method {
    /// The method's number in a frame.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for &method in Method::ALL {
            assert_eq!(Method::from_number(method.number()), Some(method));
        }
        assert_eq!(Method::from_number(0), None);
        assert_eq!(Method::from_number(u16::MAX), None);
    }
}
