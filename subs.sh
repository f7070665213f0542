i=0; while [ $i -lt 1000 ]; do x=$(echo hi); i=$((i+1)); done
