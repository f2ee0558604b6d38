// SPDX-License-Identifier: GPL-2.0-only
/*
 * SQLite: connections of many fibers to one file, which wait for each other by
 * its busy timeout and for the disk. The file is in FIBER_TEST_DIR, or in the
 * working folder.
 */
#include <sqlite3.h>

#include "libraries/crowd.h"
#include "lib/scene.h"

enum { WRITERS = 8, WRITES = 12, BUSY_MS = 600000 };

static char path[256];
static const char *journal;

static void path_make(void)
{
	const char *dir = getenv("FIBER_TEST_DIR");

	snprintf(path, sizeof(path), "%s/fiber-sqlite-%d.db", dir ? dir : ".",
		 getpid());
}

static void path_remove(void)
{
	static const char *const kin[] = { "", "-journal", "-wal", "-shm" };
	char name[300];

	for (size_t i = 0; i < sizeof(kin) / sizeof(kin[0]); i++) {
		snprintf(name, sizeof(name), "%s%s", path, kin[i]);
		unlink(name);
	}
}

static int first_number(void *arg, int n, char **value, char **name)
{
	*(long *)arg = value[0] && !strcmp(value[0], "ok") ? 1 :
		       atol(value[0] ? value[0] : "0");
	return 0;
}

/* The first field of the last row, as a number ("ok" is 1); or -1 */
static long ask(sqlite3 *db, const char *query)
{
	char *error = NULL;
	long n = -1;

	if (sqlite3_exec(db, query, first_number, &n, &error)) {
		failed(__FILE__, __LINE__, "%s: %s", query, error);
		sqlite3_free(error);
	}
	return n;
}

static sqlite3 *open_file(void)
{
	sqlite3 *db = NULL;

	check_eq(SQLITE_OK, sqlite3_open(path, &db));
	check_eq(SQLITE_OK, sqlite3_busy_timeout(db, BUSY_MS));
	ask(db, "pragma synchronous = full");
	check_eq(2, ask(db, "pragma synchronous"));
	return db;
}

static void make_file(void)
{
	char query[64];
	sqlite3 *db;

	path_make();
	path_remove();
	db = open_file();
	snprintf(query, sizeof(query), "pragma journal_mode = %s", journal);
	ask(db, query);
	ask(db, "create table row (writer, seq); create table sum (n);"
		"insert into sum values (0)");
	check_eq(SQLITE_OK, sqlite3_close(db));
}

/* ---- all write at once ---- */

static void writes(int i)
{
	sqlite3 *db = open_file();
	char query[160];

	crowd_gather();
	for (int seq = 0; seq < WRITES; seq++) {
		snprintf(query, sizeof(query),
			 "begin immediate; insert into row values (%d, %d);"
			 "update sum set n = n + 1; commit", i, seq);
		crowd_enter(i);
		ask(db, query);
		crowd_leave(i);
		fiber_yield();
	}
	check_eq(SQLITE_OK, sqlite3_close(db));
}

static void all_is_there(void)
{
	sqlite3 *db = open_file();

	check_eq(WRITERS * WRITES, ask(db, "select n from sum"));
	check_eq(WRITERS * WRITES, ask(db, "select count(*) from row"));
	check_eq(WRITERS * WRITES, ask(db,
		"select count(*) from (select distinct writer, seq from row)"));
	check_eq(1, ask(db, "pragma integrity_check"));
	check_eq(SQLITE_OK, sqlite3_close(db));
}

static void write_all(const char *mode)
{
	journal = mode;
	make_file();
	crowd = (struct crowd){ .work = writes, .n = WRITERS, .processors = 2 };
	crowd_run_once();
	all_is_there();
	path_remove();
	figure("SQLite, journal %s: %d fibers x %d transactions took %lu ms (%s); at once %d, turns of another fiber %lu\n",
	       mode, WRITERS, WRITES, crowd.took / MS, crowd.backend,
	       crowd.peak, crowd.turns);
}

TEST(eight_write_to_one_file)
{
	write_all("delete");
	EXPECT_EQ(0, failures);
}

TEST(eight_write_to_one_file_with_a_log)
{
	write_all("wal");
	EXPECT_EQ(0, failures);
}

/* ---- a transaction that another fiber of the same processor holds ---- */

static sqlite3 *holder, *waiter;

static void block_busy(struct scene *s)
{
	ask(waiter, "begin immediate; update sum set n = n + 1; commit");
}

static void wake_busy(struct scene *s)
{
	ask(holder, "commit");
}

TEST(busy_until_another_fiber_commits)
{
	static struct scene s = { .block = block_busy, .wake = wake_busy };

	journal = "delete";
	make_file();
	holder = open_file();
	waiter = open_file();
	ask(holder, "begin immediate; update sum set n = n + 1");
	play(&s);
	check_eq(2, ask(holder, "select n from sum"));
	check_eq(SQLITE_OK, sqlite3_close(holder));
	check_eq(SQLITE_OK, sqlite3_close(waiter));
	path_remove();
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
