//! x
fn main() {
    models::explore::main(&models::scenarios());
}
