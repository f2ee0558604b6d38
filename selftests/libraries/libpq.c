// SPDX-License-Identifier: GPL-2.0-only
/*
 * libpq against a PostgreSQL that libpq.sh has started: PGHOST and its kin say
 * where.
 */
#include <libpq-fe.h>

#include "libraries/crowd.h"
#include "lib/scene.h"

/* The first field of what the server answers, as a number; 0: none */
static long ask(PGconn *c, const char *query)
{
	PGresult *r = PQexec(c, query);
	ExecStatusType status = PQresultStatus(r);
	long n = 0;

	if (status == PGRES_TUPLES_OK)
		n = atol(PQgetvalue(r, 0, 0));
	else if (status != PGRES_COMMAND_OK)
		failed(__FILE__, __LINE__, "%s: %s", query, PQerrorMessage(c));
	PQclear(r);
	return n;
}

static PGconn *connect_to_server(void)
{
	PGconn *c = PQconnectdb("");

	if (PQstatus(c) != CONNECTION_OK)
		failed(__FILE__, __LINE__, "%s", PQerrorMessage(c));
	return c;
}

/* ---- a hundred that sleep, and then all write to one row ---- */

static void sleeps(int i)
{
	PGconn *c = connect_to_server();
	char query[64];

	snprintf(query, sizeof(query), "select %d from pg_sleep(%.3f)", i,
		 (double)crowd.nap / SEC);
	crowd_gather();
	crowd_enter(i);
	check_eq(i, ask(c, query));
	crowd_leave(i);
	ask(c, "update counter set n = n + 1");
	PQfinish(c);
}

TEST(pg_sleep_in_a_hundred_fibers)
{
	PGconn *c;
	long before;

	crowd = (struct crowd){ .work = sleeps, .n = many(100), .processors = 2,
				.nap = nap(100 * MS) };
	c = connect_to_server();
	ask(c, "create table counter (n int)");
	ask(c, "insert into counter values (0)");
	crowd_run("select pg_sleep");
	before = ask(c, "select n from counter");
	EXPECT_LT(0, before);
	EXPECT_EQ(0, before % crowd.n);
	ask(c, "drop table counter");
	PQfinish(c);
	EXPECT_EQ(0, failures);
}

/* ---- a lock of the server, which a fiber of the same processor holds ---- */

static PGconn *holder, *waiter;

static void block_lock(struct scene *s)
{
	ask(waiter, "select pg_advisory_lock(7)");
	check_eq(1, ask(waiter, "select count(*) from pg_locks where locktype = 'advisory' and granted"));
}

static void wake_lock(struct scene *s)
{
	ask(holder, "select pg_advisory_unlock(7)");
}

TEST(a_lock_that_another_fiber_holds)
{
	static struct scene s = { .block = block_lock, .wake = wake_lock };

	holder = connect_to_server();
	waiter = connect_to_server();
	ask(holder, "select pg_advisory_lock(7)");
	play(&s);
	PQfinish(holder);
	PQfinish(waiter);
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
