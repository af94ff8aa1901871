//! Mooncake's classes of options, whose fields are attributes and arguments of the constructor.

use std::fmt;

use super::arguments::{Flag, Items, Medium, Size};
use super::enumerations::{ObjectDataType, SoftPinAction};

/// Declares a class. The first argument is the constructor's signature as `help()` shows it; a star
/// before the fields makes them arguments that are passed by name. Each field has a default.
macro_rules! record {
    (
        $shown:literal;
        $(#[$meta:meta])*
        $name:ident($($star:tt)?) {
            $($field:ident: $type:ident $(<$of:ty>)? = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        pub(crate) struct $name {
            $($field: $type $(<$of>)?,)*
        }

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = ($($star,)? $($field = $default,)*), text_signature = $shown)]
            #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
            fn new($($field: $type $(<$of>)?),*) -> Self {
                Self { $($field),* }
            }

            fn __repr__(&self) -> String {
                let fields = [$(format!(concat!(stringify!($field), "={}"), self.$field.repr())),*];
                format!("{}({})", stringify!($name), fields.join(", "))
            }
        }
    };
}

pub(super) use record;

/// A field's value as the class shows it.
pub(super) trait Repr: fmt::Debug {
    fn repr(&self) -> String {
        format!("{self:?}")
    }
}

impl Repr for u32 {}
impl Repr for String {}
impl Repr for SoftPinAction {}
impl Repr for ObjectDataType {}
impl<T: fmt::Debug> Repr for Items<T> {}

impl Repr for Size {
    fn repr(&self) -> String {
        self.0.to_string()
    }
}

impl Repr for Flag {
    fn repr(&self) -> String {
        if self.0 { "True" } else { "False" }.to_owned()
    }
}

impl Repr for Medium {
    fn repr(&self) -> String {
        format!("'{}'", self.0)
    }
}

impl<T: Repr> Repr for Option<T> {
    fn repr(&self) -> String {
        self.as_ref().map_or_else(|| "None".to_owned(), T::repr)
    }
}
