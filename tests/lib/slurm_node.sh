# shellcheck shell=sh
# A Slurm of one node for tests/lib/slurm.sh, which sources this file after cli.sh. The caller owns its daemons,
# its authentication (munge) and all their files, so it needs no rights. Packages: slurm-wlm munge.

# slurm_start DIR: returns when it takes jobs; 1: it did not start, DIR has the logs.
slurm_start() {
    slurm_dir=$1
    slurm_host=$(hostname -s)
    slurm_port=$((20000 + $$ % 20000))
    mkdir -p "$1/munge" "$1/state" "$1/spool"
    chmod 700 "$1/munge"
    head -c 128 /dev/urandom >"$1/munge/key"
    chmod 600 "$1/munge/key"
    munged --force --socket="$1/munge/socket" --key-file="$1/munge/key" --pid-file="$1/munge/pid" \
        --log-file="$1/munge/log" --seed-file="$1/munge/seed" || return 1
    cat >"$1/slurm.conf" <<EOF
ClusterName=one
SlurmctldHost=$slurm_host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$1/munge/socket
SlurmctldPort=$slurm_port
SlurmdPort=$((slurm_port + 1))
SlurmctldPidFile=$1/slurmctld.pid
SlurmdPidFile=$1/slurmd.pid
SlurmctldLogFile=$1/slurmctld.log
SlurmdLogFile=$1/slurmd.log
SlurmdSpoolDir=$1/spool
StateSaveLocation=$1/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
NodeName=$slurm_host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
    export SLURM_CONF="$1/slurm.conf"
    slurmctld && slurmd || return 1
    await slurm_is_idle
}
slurm_is_idle() { [ "$(sinfo -h -o %t 2>/dev/null)" = idle ]; }

slurm_stop() {
    for slurm_file in slurmd.pid slurmctld.pid munge/pid; do
        [ ! -s "$slurm_dir/$slurm_file" ] || kill "$(cat "$slurm_dir/$slurm_file")" 2>/dev/null
    done
}
