#!/usr/bin/python3
"""chat.py - a conversation through libmoeflux and ctypes: each line of stdin is a question.

    ./chat.py MODEL_DIR [DEVICE [SEED]]
"""
import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char, c_int, c_size_t, c_uint32, c_void_p


class Err(ctypes.Structure):
    _fields_ = [("code", c_int), ("text", c_char * 512)]


class Piece(ctypes.Structure):  # the first members of struct moeflux_piece
    _fields_ = [("kind", c_int), ("text", c_void_p), ("len", c_size_t)]


TEXT = 0  # MOEFLUX_PIECE_TEXT
Callback = ctypes.CFUNCTYPE(ctypes.c_bool, c_void_p, POINTER(Piece))
library = ctypes.CDLL("libmoeflux.so.0")
error = Err()


def call(name, *arguments):
    """Calls a function whose last argument is the error."""
    if getattr(library, "moeflux_" + name)(*arguments, byref(error)) < 0:
        sys.exit("chat: " + error.text.decode())


def new(name, *arguments):
    """Calls a function that makes an object, its first argument."""
    out = c_void_p()
    call(name, byref(out), *arguments)
    return out


@Callback
def show(_ctx, piece):
    if piece[0].kind == TEXT:
        sys.stdout.buffer.write(ctypes.string_at(piece[0].text, piece[0].len))
        sys.stdout.flush()
    return True


if len(sys.argv) < 2:
    sys.exit("usage: chat.py MODEL_DIR [DEVICE [SEED]]")
device = sys.argv[2].encode() if len(sys.argv) > 2 else None
model = new("model_open_dir", os.fsencode(sys.argv[1]), device)
chat = new("chat_open", model)
session = new("session_new", model, c_uint32(4096))
request = new("request_new")
if len(sys.argv) > 3:
    call("request_set", request, b"seed", sys.argv[3].encode())
for line in sys.stdin.buffer:
    answer = c_void_p()
    call("request_say", request, b"user", line.rstrip(b"\n"))
    call("chat_answer", chat, session, request, show, None, byref(answer))
    call("request_add_answer", request, answer)
    library.moeflux_answer_free(answer)
    print(flush=True)
for end, thing in ("request_free", request), ("session_free", session), ("chat_close", chat), ("model_close", model):
    getattr(library, "moeflux_" + end)(thing)
