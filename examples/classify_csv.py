"""A classifier from a CSV, with the commands of the shell."""

import csv

import anyformer as af
from anyformer.cli import main

with open("reviews.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["text", "mood"])
    for i in range(40):
        table.writerow([f"What a {'lovely' if i % 2 else 'dreadful'} film, number {i}", "happy" if i % 2 else "sad"])

command = "train --csv reviews.csv --label mood --set steps=25 --set evaluate.every=25 --set model.encoder.depth=1"
assert main([*command.split(), "--set", "batch.examples=8", "--device", "cpu"]) == 0

for answer in af.tasks.classify("runs/reviews", ["What a lovely film", "What a dreadful film"]):
    print(answer)
