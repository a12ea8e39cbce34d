#!/usr/bin/perl
# A filter for a GPT stream, written from msgpack's specification alone: it passes every record on unchanged and adds
# itself to the `via` of each header, as every filter must. It reads and writes records one by one.
use strict;
use warnings;

my $raw;    # the bytes of the record so far

sub take { my $n = shift; read(STDIN, my $b, $n) == $n or die "sign: error: truncated\n"; $raw .= $b; $b }
sub number { my $n = shift; unpack $n == 1 ? "C" : $n == 2 ? "n" : "N", take($n) }
sub items { my $n = shift; value() while $n-- > 0; "" }

sub value {    # reads one value, whatever it is; returns it if it is text
    my $type = ord take(1);
    return "" if $type < 0x80 or $type >= 0xe0; # a small integer
    return items(2 * ($type & 15)) if $type < 0x90; # a small map
    return items($type & 15) if $type < 0xa0; # a small array
    return take($type & 31) if $type < 0xc0; # a short text
    return "" if $type < 0xc4; # nil, false, true
    return take(number(1 << $type - 0xc4)) if $type < 0xc7; # bin
    return take(1 + number(1 << $type - 0xc7)) if $type < 0xca; # ext
    return take(4 << $type - 0xca) if $type < 0xcc; # float
    return take(1 << ($type & 3)) if $type < 0xd4; # integer
    return take(1 + (1 << $type - 0xd4)) if $type < 0xd9; # fixext
    return take(number(1 << $type - 0xd9)) if $type < 0xdc; # text
    return items(number(2 << $type - 0xdc)) if $type < 0xde; # array
    return items(2 * number(2 << $type - 0xde)); # map
}

binmode STDIN;
binmode STDOUT;
$| = 1;
until (eof STDIN) {
    $raw = "";
    my $type = ord take(1);
    my $keys = $type < 0x90 ? $type & 15 : number(2 << $type - 0xde);
    my $kind = "";
    while ($keys-- > 0) {
        my $key = value();
        my $start = length $raw;
        my $value = value();
        $kind = $value if $key eq "kind";
        next unless $key eq "via" and $kind eq "header";
        my $list = substr $raw, $start;    # fewer than 15 items: their number is in the first byte
        substr($raw, $start) = chr(ord($list) + 1) . substr($list, 1) . chr(0xa0 + length "sign") . "sign";
    }
    print $raw;
}
