"""The text at the end of the help page of each command."""

from __future__ import annotations

from torch_edl.launch.jobs.folder import KEEP_DAYS, KEEP_JOBS

ALL = """\
examples:
  torch-edl run model.py --data train.parquet --workers 2:8 --ps 2 --epochs 3 --output trained
  torch-edl run --nproc-per-node 4 train.py --lr 0.1
  torch-edl evaluate model.py --from trained --data test.parquet
  torch-edl predict model.py --from trained --data new.parquet --output scores.csv
  torch-edl status

The options of a command: torch-edl run --help
"""

RUN = """\
examples:
  torch-edl run model.py --data train.parquet --epochs 3 --output trained
      train in one worker process

  torch-edl run model.py --data 'clicks-*.parquet' --eval-data test.parquet \\
          --workers 2:8 --ps 2 --checkpoint-dir ckpt --checkpoint-every 1000
      two to eight workers, two parameter servers, a checkpoint every 1000 steps

  torch-edl run model.py --data 'clicks-*.parquet' --checkpoint-dir ckpt --resume
      continue from the newest checkpoint with the records that are not trained yet

  torch-edl run model.py --data train.csv --dry-run -- --hidden 256
      check the model file and the data, print the plan; --hidden goes to the model file

MODEL.py defines model(), loss(labels, predictions), optimizer(params) and
feed(records, mode, metadata); learning rates and layers are set there.

A training script takes torchrun's options and is elastic if it uses torch_edl:
  torch-edl run train.py --workers 2:4
  torch-edl run --nnodes 1:4 --nproc-per-node 2 --rdzv-endpoint node0:29400 train.py
      all options: torch-edl run --help-torchrun
  torch-edl run -- train.py
      after `--`, a file is a training script even if it defines model and loss
"""

CONTINUE = """\
After a machine went down with all processes of a job, torch-edl status calls the job dead. A new
master continues with the state of the job in its folder, or in the etcd of --store:

  with --durability journal, with the updates in the journals: nothing is lost that was on the disk
  otherwise from the newest checkpoint, or from the beginning

A job with --durability journal that failed continues in the same way once the cause is mended. Any
other job that has ended continues with torch-edl run --resume.
"""

LOGS = """\
examples:
  torch-edl logs --tail 20
      the last 20 lines of each log of the newest job; the events come last

  torch-edl logs digits --role worker --id 1 --follow
      the output of worker-1, as it is printed
"""

CLEAN = f"""\
examples:
  torch-edl clean --days 7
      keep jobs that were active in the last 7 days

  torch-edl clean --keep 20 --dry-run
      list the folders that would be removed to keep the 20 newest jobs

On a cluster, the objects of the jobs are removed, with the pods that have their logs. Models,
checkpoints and outputs are never removed. On this machine, each job that starts removes the
folders of jobs that ended at least {KEEP_DAYS:g} days ago, and all but the {KEEP_JOBS} newest.
"""
