// A static program in Zig: holds 32 MiB, rewrites a part of it all the time, and looks at all of it. Says "ready", goes on until the end of its standard input,
// then says "fine" and ends with status 7. By system calls alone, whose wrappers are the same from one version of Zig to the next.
const std = @import("std");
const linux = std.os.linux;

const words = 4 << 20;
var held: [words]u64 = undefined;
var version: [words / 512]u64 = @splat(0);

fn word(page: usize, at: usize) u64 {
    return (page *% 0x9E3779B97F4A7C15 +% version[page]) ^ (at / 8);
}

fn fill(page: usize) void {
    version[page] += 1;
    for (0..512) |at| held[page * 512 + at] = word(page, at);
}

fn look() void {
    for (0..version.len) |page| {
        for (0..512) |at| {
            if (held[page * 512 + at] != word(page, at)) {
                _ = linux.write(2, "WRONG\n", 6);
                linux.exit_group(1);
            }
        }
    }
}

pub fn main() void {
    for (0..version.len) |page| fill(page);
    _ = linux.write(1, "ready\n", 6);
    var round: usize = 0;
    while (true) : (round += 1) {
        var input = [1]linux.pollfd{.{ .fd = 0, .events = 1, .revents = 0 }};
        if (linux.poll(&input, 1, 20) == 1) break;
        var page = round % 97;
        while (page < version.len) : (page += 97) fill(page);
        if (round % 16 == 0) look();
    }
    look();
    _ = linux.write(1, "fine \n", 6);
    linux.exit_group(7);
}
