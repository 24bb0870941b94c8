/* disk_room.h - lets a test say how much room is on the disk. */
#ifndef MOEFLUX_TESTS_DISK_ROOM_H
#define MOEFLUX_TESTS_DISK_ROOM_H

#include <stdint.h>

/* Makes statvfs report `bytes` free bytes on every file system. UINT64_MAX: the real number again. */
void disk_room_pretend(uint64_t bytes);

#endif
