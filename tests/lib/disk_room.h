/* disk_room.h - a disk with as much room as a test wants. */
#ifndef MOEFLUX_TESTS_DISK_ROOM_H
#define MOEFLUX_TESTS_DISK_ROOM_H

#include <stdint.h>

/* Makes statvfs report so many free bytes on every file system from now on. UINT64_MAX: the true number. */
void disk_room_pretend(uint64_t bytes);

#endif
