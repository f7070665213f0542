//! Kinds of things that have names: arms, workloads, programs, data.

/// Declares an enum whose variants have names, the same on a command line, in results and in the names of files: with all of them in
/// `ALL`, the name of each by `name`, and read and written by it. What the kind is called in a message follows the enum's name.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $name:ident, $what:literal { $($(#[$about:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                $name::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| {
                    format!("{text:?} is no {}; there are {}", $what, [$($text),+].join(", "))
                })
            }
        }

        impl $crate::serde::Serialize for $name {
            fn serialize<S: $crate::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = <String as $crate::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err($crate::serde::de::Error::custom)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    named! {
        /// A fruit.
        pub enum Fruit, "fruit" {
            /// Red or green.
            Apple = "apple",
            /// With many seeds.
            PassionFruit = "passion-fruit",
        }
    }

    #[test]
    fn each_is_read_and_written_by_its_name_and_no_other_is() {
        for fruit in Fruit::ALL.into_iter() {
            assert_eq!(fruit.name().parse(), Ok(fruit));
            let text = serde_json::to_string(&fruit).unwrap();
            assert_eq!(serde_json::from_str::<Fruit>(&text).unwrap(), fruit);
        }
        assert_eq!(serde_json::to_string(&Fruit::PassionFruit).unwrap(), "\"passion-fruit\"");
        let refused = "\"pear\" is no fruit; there are apple, passion-fruit";
        assert_eq!("pear".parse::<Fruit>(), Err(refused.to_owned()));
        assert!(serde_json::from_str::<Fruit>("\"pear\"").unwrap_err().to_string().contains(refused));
    }
}
