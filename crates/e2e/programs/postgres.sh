# A cluster of our own, folded but for initdb and the clients; dumps are compared without what holds times.
for folder in /usr/lib/postgresql/*/bin; do
    PATH=$folder:$PATH
done
export PGHOST="$PWD/socket" PGUSER=postgres PGDATABASE=postgres
mkdir -m 700 socket
initdb -D data -U postgres --no-sync -A trust >log
$FOLD postgres -D data -k "$PGHOST" -c listen_addresses= -c fsync=off -c shared_buffers=16MB >>log 2>&1 &
server=$!
trap 'kill -INT $server; wait $server || cat log >&2' EXIT
for _ in $(seq 600); do
    pg_isready -q && break
    sleep 0.05
done
pgbench -q -i -s $((2 * SCALE)) 2>>log
pgbench -n -c 3 -t $((300 * SCALE)) --random-seed=7 2>>log | grep -E 'processed|failed'

# Sorts, hashes and a cursor whose memory lies idle between two fetches.
psql -qAt <<'SQL'
set work_mem = '64MB';
create table word as select i, md5(i::text) as text from generate_series(1, 60000) i;
create index on word(text);
select count(*), md5(string_agg(text, ',' order by text)) from word;
begin;
declare c cursor for select a.i, b.text from word a join word b on b.i = 60001 - a.i order by b.text;
fetch 3 from c;
select pg_sleep(0.5);
move 50000 from c;
fetch 3 from c;
commit;
select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts;
SQL
pg_amcheck --install-missing --heapallindexed --parent-check postgres
echo "amcheck passes"
pg_dump | sed -E '/^--/d; /^\\(un)?restrict/d; s/\t20[0-9-]+ [0-9:.]+\t/\t/' | sort | sha256sum
