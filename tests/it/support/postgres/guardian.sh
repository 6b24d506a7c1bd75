# Runs a PostgreSQL server for as long as the process that started this lives.
#
# Arguments: the directory that goes with the server, and that of PostgreSQL's programs. On standard
# input come commands, one a line; each is answered with one line. The end of the input, which also
# comes when the other process is killed, ends the server and removes the directory.

directory=$1
programs=$2
server=
# The end is seen where commands are read, not where one is answered.
trap '' PIPE

# A server that was killed leaves processes, which must not outlive it.
everything() {
    echo "$server $(cat "/proc/$server/task/$server/children" 2>/dev/null)"
}

# One that is dead may wait long for its parent to notice.
lives() {
    [ -e "/proc/$1" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null
}

while read -r command port; do
    case $command in
    initialise)
        "$programs/initdb" --no-sync --no-locale --encoding=UTF8 --auth=scram-sha-256 \
            --username=postgres --pwfile="$directory/password" --pgdata="$directory/data" \
            </dev/null >>"$directory/log" 2>&1
        echo "initialised"
        ;;
    start)
        "$programs/postgres" -D "$directory/data" -p "$port" </dev/null >>"$directory/log" 2>&1 &
        server=$!
        echo "$server"
        ;;
    stop)
        # Fast: open transactions are rolled back, then a checkpoint.
        kill -INT "$server"
        wait "$server"
        echo "stopped"
        ;;
    kill)
        kill -STOP "$server"
        all=$(everything)
        kill -KILL $all 2>/dev/null
        wait "$server" 2>/dev/null
        for process in $all; do
            while lives "$process"; do sleep 0.01; done
        done
        echo "killed"
        ;;
    freeze)
        kill -STOP $(everything) 2>/dev/null
        echo "frozen"
        ;;
    thaw)
        kill -CONT $(everything) 2>/dev/null
        echo "thawed"
        ;;
    esac
done

if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    all=$(everything)
    kill -CONT $all 2>/dev/null
    kill -QUIT "$server"
    wait "$server"
fi
rm -rf "$directory"
